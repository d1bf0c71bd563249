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
    u64 plain;                // the keys of a tensor that is dense memory and no more
    u64 contiguity;           // the bits of the traits that tell whether a tensor is contiguous
    u64 contiguous;           // and what they are if it is
    u64 types;                // bit k: kernels know the type that torch numbers k
    Object tensor, parameter; // the two types read here; subclasses are left to Python
    Object dict, text;        // the types of a state and of its keys
    Object shared;            // the type of tensors that processes share; null if there are none
    i64 local, spec, object;  // where such a tensor holds this process's part and how it is shared,
                              // and where an implementation holds its Python object
    const void* undefined;    // the implementation of a gradient that is None
    const void* (*grad)(const void* implementation);
    void (*bump_version)(const void*);
    int (*address)(const void*, void**);
    int (*dimensions)(const void*, i64*);
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

// Sizes and strides, read only where a tensor is not contiguous.
struct Shape {
    i64 dimensions;
    const i64 *sizes, *strides;

    Shape(const Layout& layout, const Tensor& tensor) {
        layout.dimensions(tensor.handle, &dimensions);
        layout.sizes(tensor.handle, &sizes);
        layout.strides(tensor.handle, &strides);
    }
};

template <class T>
T at(const void* base, i64 offset) {
    return *reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
}

Object type_of(Object object) { return at<Object>(object, sizeof(i64)); }

constexpr u64 TYPE = 0xffff;

bool read(const Layout& layout, const void* handle, Tensor& tensor) {
    const void* implementation = at<const void*>(handle, 0);
    if (at<u64>(implementation, layout.keys) != layout.plain) return false;
    const u64 traits = at<u64>(implementation, layout.traits);
    tensor.handle = const_cast<void*>(handle);
    tensor.type = int(traits & TYPE);
    if (tensor.type >= 16 || !(layout.types >> tensor.type & 1)) return false;
    tensor.contiguous = (traits & layout.contiguity) == layout.contiguous;
    tensor.elements = at<i64>(implementation, layout.count);
    layout.address(handle, &tensor.address);
    return tensor.address || !tensor.elements;
}

// Whether the elements fill one range of memory, in any order of dimensions.
bool is_dense(const Layout& layout, const Tensor& tensor) {
    if (tensor.contiguous) return true;
    const Shape shape(layout, tensor);
    i64 filled = 1;
    while (filled < tensor.elements) {
        i64 d = 0;
        while (d < shape.dimensions && (shape.strides[d] != filled || shape.sizes[d] == 1)) ++d;
        if (d == shape.dimensions) return false;
        filled *= shape.sizes[d];
    }
    return true;
}

bool same_shape(const Layout& layout, const Tensor& a, const Tensor& b) {
    const Shape x(layout, a), y(layout, b);
    if (x.dimensions != y.dimensions) return false;
    for (i64 d = 0; d < x.dimensions; ++d)
        if (x.sizes[d] != y.sizes[d]) return false;
    return true;
}

// Whether equal places in memory hold the same elements of both; their shapes are one.
bool same_walk(const Layout& layout, const Tensor& a, const Tensor& b) {
    if (a.elements != b.elements) return false;
    if (a.contiguous && b.contiguous) return true;
    const Shape x(layout, a), y(layout, b);
    if (x.dimensions != y.dimensions) return false;
    for (i64 d = 0; d < x.dimensions; ++d)
        if (x.sizes[d] != y.sizes[d] || (x.strides[d] != y.strides[d] && x.sizes[d] != 1))
            return false;
    return true;
}

// Where the addresses of further places are likely to stand. Wrong guesses cost time and no more.
constexpr i64 STORAGE = 16, AUTOGRAD = 24, VERSION = 40, DICT_KEYS = 32;

void fetch(const void* place) { __builtin_prefetch(place); }

void fetch(const void* place, i64 lines) {
    for (i64 i = 0; i < lines; ++i) fetch(static_cast<const char*>(place) + 64 * i);
}

}  // namespace
