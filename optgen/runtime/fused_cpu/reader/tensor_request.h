// What the reader is asked, and where it puts what it has read: the streams of a table.

#include "optgen/runtime/fused_cpu/reader/tensor_objects.h"

namespace {

// Words with four bits a stream: in `types` the number of its type or 0, in `needed` all or none.
constexpr u64 ALL = 15;
u64 of_stream(u64 word, i64 stream) { return word >> 4 * stream & ALL; }
u64 in_stream(u64 bits, i64 stream) { return bits << 4 * stream; }

struct Request {
    const Layout* layout;
    i64 groups;
    const Object* lists;  // [group]: its list of parameters; of a function [stream]
    const u64* needed;    // [group][2]: the streams its tensors must have, vectors and those of more
                          // dimensions; none if the group must have no gradients
    const u64* allowed;   // [group]: bit k: its parameters may have the type that torch numbers k
    Object state;         // the optimizer's: a dict by parameter
    i64 entries;
    const i64* order;     // [entry of state]: the tensor it belongs to, or -1
    i64 streams, scalars; // of the shape of the parameter, and single numbers
    const Object* keys;       // [streams + scalars]: the keys of a state, from the third on
    const char* const* names; // the same as C strings
    const unsigned char* axes; // [streams]: an Axes
    i64 counted;          // whether the first single number is a count of steps
    i64 by_matrix;        // whether elements must lie in the order of their indices
    i64 tensors;
    const Object* specs;  // [stream][tensor]: how it is shared, if it is; null if none are
    Object* params;       // [tensor]: the parameters last seen, none of them twice; of a function
                          // scratch
    void** handles;       // [stream][tensor], scratch
    void** address;       // from here on as in kernel.h
    i64* elements;
    u64* types;
    int* group;
    i64* shape;           // or null
    void (*kernel)(const void* table, const void* threads);
    const void *table, *threads;
};

// Which axes of its parameter a stream has, and what a table has of a parameter's shape.
enum Axes : unsigned char { LIKE, ROW, COLUMN };
enum { DIMENSIONS, BATCH, ROWS, COLUMNS, SHAPE };

// The bytes of a number of a type, by torch's number of it; none of a stream that is not there.
inline i64 bytes_of(u64 type) { return type == 7 ? 8 : type == 6 ? 4 : type ? 2 : 0; }

inline void put_shape(const Shape& shape, i64* to) {
    to[DIMENSIONS] = shape.dimensions;
    to[ROWS] = to[COLUMNS] = to[BATCH] = 1;
    for (i64 d = 0; d < shape.dimensions; ++d)
        to[d + 2 < shape.dimensions ? BATCH : d + 2 == shape.dimensions ? ROWS : COLUMNS]
            *= shape.sizes[d];
}

// The streams that a request asks for.
struct Streams {
    const Request& request;
    const Layout& layout;

    void put(i64 stream, i64 t, const Tensor& tensor) const {
        request.address[stream * request.tensors + t] = tensor.address;
        request.handles[stream * request.tensors + t] = tensor.handle;
        request.types[t] |= in_stream(u64(tensor.type), stream);
    }

    bool is_tensor(Object object) const {
        const Object type = type_of(object);
        return type == layout.tensor || type == layout.parameter;
    }

    // The tensor that is memory: of a shared one this process's part, if it is shared as expected.
    Object held(Object object, i64 stream, i64 t) const {
        const bool shared = type_of(object) == layout.shared;
        const i64 place = stream * request.tensors + t;
        const Object expected = request.specs ? request.specs[place] : nullptr;
        if (shared && at<Object>(object, layout.spec) != expected) return nullptr;
        if (!shared && expected) return nullptr;
        if (shared) object = at<Object>(object, layout.local);
        return object && is_tensor(object) ? object : nullptr;
    }

    // The same for a gradient, of which torch holds the implementation.
    const void* held_gradient(const void* grad, i64 t) const {
        if (!request.specs || !request.specs[request.tensors + t]) return grad;
        const Object object = at<Object>(at<const void*>(grad, 0), layout.object);
        const Object memory = object ? held(object, 1, t) : nullptr;
        return memory ? memory + layout.implementation : nullptr;
    }

    // Whether no count of steps has a sign: such a one Python looks at, and refuses.
    bool counts() const {
        if (!request.counted) return true;
        for (i64 t = 0; t < request.tensors; ++t) {
            const i64 bytes = bytes_of(of_stream(request.types[t], request.streams));
            const void* const count = request.address[request.streams * request.tensors + t];
            if (bytes && at<signed char>(count, bytes - 1) < 0) return false;
        }
        return true;
    }

    void fetch_implementation(const void* handle) const {
        const char* const implementation = at<const char*>(handle, 0);
        fetch(implementation);
        fetch(implementation + layout.keys);
    }

    void fetch_storage(const void* handle) const {
        fetch(at<const void*>(at<const void*>(handle, 0), STORAGE));
    }
};

}  // namespace
