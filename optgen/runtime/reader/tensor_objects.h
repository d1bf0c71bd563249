// Layout of tensor objects in torch and Python: where addresses, dtypes and shapes are in memory.
// object_layout.py finds and checks the offsets.

namespace {

using i64 = long long;
using u64 = unsigned long long;
using Object = const char*;

struct Layout {
    i64 implementation;       // offset in a Python tensor: address of its TensorImpl, which is
                              // called its implementation below
    i64 dispatch_keys;        // offset in an implementation: dispatch keys
    i64 traits;               // offset in an implementation: dtype, device, contiguity in one word
    i64 element_count;        // offset in an implementation: number of elements
    i64 shape;                // offset in an implementation: number of dimensions, then their sizes
                              // if there are at most INLINE_DIMENSIONS
    i64 storage;              // offset in an implementation: address of its storage
    i64 storage_begin, storage_bytes; // offsets in a storage: address of its memory, its size
    u64 plain_keys;           // dispatch keys of a tensor that is dense memory and nothing else
    u64 contiguity_mask;      // the traits' bits that tell whether a tensor is contiguous
    u64 contiguous_bits;      // the values of these bits in a contiguous tensor
    u64 stream_dtypes;        // bit k: streams may have torch's dtype k, which the kernel knows
    u64 scalar_dtypes;        // bit k: scalar cells may have torch's dtype k
    Object tensor_type, parameter_type; // the Python types of tensors that the reader takes
    Object dict_type, key_type; // the Python types of a state and of its keys
    Object dtensor_type;      // the Python type DTensor; null if there are no sharded tensors
    i64 local, spec;          // offsets in a DTensor: its local shard, its sharding spec
    i64 object;               // offset in an implementation: its Python object
    const void* undefined_tensor; // torch's undefined TensorImpl; stands for a gradient of None
    const void* (*grad)(const void* implementation);
    void (*bump_version)(const void*);
    int (*address)(const void*, void**);
    int (*sizes)(const void*, const i64**);
    int (*strides)(const void*, const i64**);
    int (*device_index)(const void*, int*);
    int (*new_handle)(const void*, void**); // adds a reference to the same tensor
    int (*delete_handle)(void*);
    i64 (*list_size)(Object);
    Object (*list_item)(Object, i64);
    int (*dict_next)(Object, i64*, Object*, Object*);
    int (*compare)(Object text, const char* ascii);
    void* (*release_lock)(); // the interpreter's lock
    void (*take_lock)(void*);
};

struct Shape {
    i64 dimensions;
    const i64* sizes;
};

struct Tensor : Shape {
    const i64* strides; // null if the tensor is contiguous
    void* address;
    void* handle; // address of an at::Tensor, whose only word is the implementation's address
    int dtype;    // torch's number of the dtype
    bool contiguous;
    i64 elements;
};

template <class T>
T at(const void* base, i64 offset) {
    return *reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
}

constexpr i64 INLINE_DIMENSIONS = 5;

Object type_of(Object object) { return at<Object>(object, sizeof(i64)); }

constexpr u64 DTYPE_MASK = 0xffff; // of the traits

constexpr int INT8 = 1; // torch's number of the dtype of a quantized state

// Format of a quantized state: how many elements share a scale, and the bits of a code. The scales
// are float32 numbers behind the codes, at a multiple of 64 bytes.
struct CodeFormat {
    i64 block, bits;

    i64 bytes(i64 elements) const {
        const i64 code_bytes = (elements * bits + 7) / 8;
        return (code_bytes + 63) / 64 * 64 + (elements + block - 1) / block * i64(sizeof(float));
    }
};

// Returns the bytes of one element, by torch's number of its dtype (7: float64, 6: float32, else 16
// bits); 0 for an absent stream.
inline i64 itemsize(u64 dtype) { return dtype == 7 ? 8 : dtype == 6 ? 4 : dtype ? 2 : 0; }

// Reads sizes, and strides unless the tensor is contiguous. Returns false if torch refuses them.
bool read_shape(const Layout& layout, const char* implementation, Tensor& tensor) {
    const auto* const place = reinterpret_cast<const i64*>(implementation + layout.shape);
    tensor.dimensions = place[0];
    tensor.sizes = place + 1;
    tensor.strides = nullptr;
    if (tensor.dimensions > INLINE_DIMENSIONS && layout.sizes(tensor.handle, &tensor.sizes))
        return false;
    return tensor.contiguous || !layout.strides(tensor.handle, &tensor.strides);
}

// More elements than any memory has, and few enough that their bytes can be computed.
constexpr i64 TOO_MANY_ELEMENTS = i64(1) << 56;

// Reads the address. Returns false if torch refuses it, or if the storage has no room for as many
// elements from there on: somebody has shrunk the storage. `codes` is null if the tensor has none.
bool read_address(
    const Layout& layout, const char* implementation, Tensor& tensor, const CodeFormat* codes) {
    if (layout.address(tensor.handle, &tensor.address)) return false;
    if (!tensor.elements) return true;
    const char* const storage = at<const char*>(implementation, layout.storage);
    if (!tensor.address || !storage) return false;
    const char* const begin = at<const char*>(storage, layout.storage_begin);
    const i64 offset = static_cast<char*>(tensor.address) - begin;
    const i64 room = at<i64>(storage, layout.storage_bytes) - offset;
    if (offset < 0 || tensor.elements >= TOO_MANY_ELEMENTS) return false;
    return room >= (codes ? codes->bytes(tensor.elements)
                          : tensor.elements * itemsize(u64(tensor.dtype)));
}

// Reads a tensor of one of these dtypes; returns false for any other tensor.
bool read(
    const Layout& layout, const void* handle, Tensor& tensor, u64 dtypes,
    const CodeFormat* codes = nullptr) {
    const char* const implementation = at<const char*>(handle, 0);
    if (at<u64>(implementation, layout.dispatch_keys) != layout.plain_keys) return false;
    const u64 traits = at<u64>(implementation, layout.traits);
    tensor.handle = const_cast<void*>(handle);
    tensor.dtype = int(traits & DTYPE_MASK);
    if (tensor.dtype >= 16 || !(dtypes >> tensor.dtype & 1)) return false;
    tensor.contiguous = (traits & layout.contiguity_mask) == layout.contiguous_bits;
    tensor.elements = at<i64>(implementation, layout.element_count);
    return read_shape(layout, implementation, tensor)
        && read_address(layout, implementation, tensor, codes);
}

bool read(const Layout& layout, const void* handle, Tensor& tensor) {
    return read(layout, handle, tensor, layout.stream_dtypes);
}

// Offsets of addresses to prefetch from: three in an implementation, DICT_KEYS in a dict. A wrong
// offset costs time and does no harm.
constexpr i64 STORAGE = 16, AUTOGRAD = 24, VERSION = 40, DICT_KEYS = 32;

void prefetch(const void* place) { __builtin_prefetch(place); }

void prefetch(const void* place, i64 lines) {
    for (i64 i = 0; i < lines; ++i) prefetch(static_cast<const char*>(place) + 64 * i);
}

}  // namespace
