// Tensors as torch and Python keep them: where in these objects stand their addresses, types and
// layouts, which object_layout.py finds out and checks.

namespace {

using i64 = long long;
using u64 = unsigned long long;
using Object = const char*;

struct Layout {
    i64 implementation;       // where a Python tensor holds the address of its implementation
    i64 keys;                 // where an implementation holds its dispatch keys
    i64 traits;               // and where type, device and contiguity, in one word
    i64 count;                // and where the number of elements
    i64 shape;                // and where how many dimensions, then, of up to INLINE, their sizes
    u64 plain;                // the keys of a tensor that is dense memory and no more
    u64 contiguity;           // the bits of the traits that tell whether a tensor is contiguous
    u64 contiguous;           // and what they are if it is
    u64 types;                // bit k: the kernel knows the type that torch numbers k
    u64 numbers;              // and of single numbers
    Object tensor, parameter; // the two types read here; subclasses are left to Python
    Object dict, text;        // the types of a state and of its keys
    Object shared;            // the type of tensors that processes share; null if there are none
    i64 local, spec, object;  // where such a tensor holds this process's part and how it is shared,
                              // and where an implementation holds its Python object
    const void* undefined;    // the implementation of a gradient that is None
    const void* (*grad)(const void* implementation);
    void (*bump_version)(const void*);
    int (*address)(const void*, void**);
    int (*sizes)(const void*, const i64**);
    int (*strides)(const void*, const i64**);
    int (*new_handle)(const void*, void**); // another owner of the same tensor
    int (*delete_handle)(void*);
    i64 (*list_size)(Object);
    Object (*list_item)(Object, i64);
    int (*dict_next)(Object, i64*, Object*, Object*);
    int (*compare)(Object text, const char* ascii);
    void* (*release_lock)();
    void (*take_lock)(void*);
};

struct Tensor {
    void* address;
    void* handle; // the address of the word that holds the implementation's address
    int type;
    bool contiguous;
    i64 elements;
};

template <class T>
T at(const void* base, i64 offset) {
    return *reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
}

constexpr i64 INLINE = 5;

struct Shape {
    i64 dimensions;
    const i64* sizes;

    Shape(const Layout& layout, const Tensor& tensor) {
        const auto* const place
            = reinterpret_cast<const i64*>(at<const char*>(tensor.handle, 0) + layout.shape);
        dimensions = place[0];
        sizes = place + 1;
        if (dimensions > INLINE) layout.sizes(tensor.handle, &sizes);
    }
};

const i64* strides_of(const Layout& layout, const Tensor& tensor) {
    const i64* strides;
    layout.strides(tensor.handle, &strides);
    return strides;
}

Object type_of(Object object) { return at<Object>(object, sizeof(i64)); }

constexpr u64 TYPE = 0xffff;

bool read(const Layout& layout, const void* handle, Tensor& tensor, u64 types) {
    const void* implementation = at<const void*>(handle, 0);
    if (at<u64>(implementation, layout.keys) != layout.plain) return false;
    const u64 traits = at<u64>(implementation, layout.traits);
    tensor.handle = const_cast<void*>(handle);
    tensor.type = int(traits & TYPE);
    if (tensor.type >= 16 || !(types >> tensor.type & 1)) return false;
    tensor.contiguous = (traits & layout.contiguity) == layout.contiguous;
    tensor.elements = at<i64>(implementation, layout.count);
    layout.address(handle, &tensor.address);
    return tensor.address || !tensor.elements;
}

bool read(const Layout& layout, const void* handle, Tensor& tensor) {
    return read(layout, handle, tensor, layout.types);
}

// Whether the elements fill one range of memory, in any order of dimensions.
bool is_dense(const Layout& layout, const Tensor& tensor) {
    if (tensor.contiguous) return true;
    const Shape shape(layout, tensor);
    const i64* const strides = strides_of(layout, tensor);
    i64 filled = 1;
    while (filled < tensor.elements) {
        i64 d = 0;
        while (d < shape.dimensions && (strides[d] != filled || shape.sizes[d] == 1)) ++d;
        if (d == shape.dimensions) return false;
        filled *= shape.sizes[d];
    }
    return true;
}

// Whether one shape is the other; but for one axis, from the last, of which it has one element.
bool same_sizes(const Shape& a, const Shape& b, i64 without = 0) {
    if (a.dimensions != b.dimensions) return false;
    for (i64 d = 0; d < a.dimensions; ++d)
        if (a.sizes[d] != (d == b.dimensions - without ? 1 : b.sizes[d])) return false;
    return true;
}

// Whether two tensors of one shape have the same elements at equal places in memory.
bool same_walk(const Layout& layout, const Tensor& a, const Tensor& b) {
    const Shape x(layout, a), y(layout, b);
    if (!same_sizes(x, y)) return false;
    if (a.contiguous && b.contiguous) return true;
    const i64 *const one = strides_of(layout, a), *const other = strides_of(layout, b);
    for (i64 d = 0; d < x.dimensions; ++d)
        if (one[d] != other[d] && x.sizes[d] != 1) return false;
    return true;
}

// Where the addresses of further places are likely to stand. Wrong guesses cost time and no more.
constexpr i64 STORAGE = 16, AUTOGRAD = 24, VERSION = 40, DICT_KEYS = 32;

void fetch(const void* place) { __builtin_prefetch(place); }

void fetch(const void* place, i64 lines) {
    for (i64 i = 0; i < lines; ++i) fetch(static_cast<const char*>(place) + 64 * i);
}

}  // namespace
