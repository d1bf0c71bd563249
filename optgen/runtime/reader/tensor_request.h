// The reader's input, and the table columns that it fills.

#include "optgen/runtime/reader/tensor_strides.h"

namespace {

// Words with four bits per stream, so for at most 16 streams and scalar cells. In `dtypes`, the
// bits are torch's dtype code or 0; in `needed_streams`, all are set or none.
constexpr u64 STREAM_BITS = 15;
constexpr i64 MAX_STREAMS = 16;
u64 of_stream(u64 word, i64 stream) { return word >> 4 * stream & STREAM_BITS; }
u64 shifted_to_stream(u64 bits, i64 stream) { return bits << 4 * stream; }

// The tensors that a plan on a device takes: it launches kernels for these dtypes and sizes only.
struct Planned {
    const u64* dtypes;    // columns as in `Table`
    const i64* elements;
    const i64* shape;     // null if `Request::shape` is
    const int* devices;   // [tensor]: index of the device; null if there is only one
};

struct Request {
    const Layout* layout;
    i64 group_count;
    const Object* lists;  // [group]: list of parameters; for a function, [stream]: list of tensors
    const u64* needed_streams; // [group][2]: streams that vectors, and tensors of more dimensions,
                          // must have; none if the group must have no gradients
    const u64* allowed_dtypes; // [group]: bit k: parameters may have torch's dtype k
    const i64* const* views; // [group]: the number of axes of the group's view, then their sizes;
                          // one size may be -1. Null for a group without a view; the whole list is
                          // null if no group has one
    Object state;         // the optimizer's state: a dict by parameter
    i64 entry_count;      // number of entries of the state
    const i64* tensor_of_entry; // [entry of the state]: index of its parameter, or -1
    i64 stream_count;     // number of streams that are no scalar cells
    i64 scalar_count;     // number of scalar cells
    const Object* keys;   // [stream, then scalar cell]: key of a state, from the third stream on
    const char* const* key_texts; // the same keys as C strings
    const unsigned char* axes; // [stream]: an Axes
    i64 has_step_count;   // whether the first scalar cell is a step count
    i64 by_matrix;        // whether parameters must be contiguous
    i64 zeroes_gradients; // whether the step leaves gradients at zero
    i64 tensor_count;
    const Object* expected_specs; // [stream][tensor]: sharding spec, or null; the whole list is
                          // null if no tensor is sharded
    const Object* expected_codes; // [stream][tensor]: quantized state, or null. Python has checked
                          // its format. The whole list is null if no state is quantized
    const CodeFormat* code_formats; // [stream]; null if no state is quantized
    u64 group_cells;      // dtype codes, as in `dtypes`, of the cells that hold states of groups:
                          // they follow the scalar cells, and have their addresses already
    Object* params;       // [tensor]: parameters of the last step, without repeats; for a function,
                          // scratch
    void** handles;       // [stream][tensor], scratch
    void** address;       // from here on: columns of `Table` in tensor_table.h
    i64* elements;
    u64* dtypes;
    int* group;
    i64* shape;           // null if the rule does not read shapes
    const Planned* planned; // what a plan on a device takes; null for a kernel that takes any tensors
    void (*kernel)(const void* table, const void* threads); // null if Python launches kernels
    const void *table, *threads;
};

// Axes of a stream (LIKE: all of the parameter's), and columns of a table's shapes.
enum Axes : unsigned char { LIKE, ROW, COLUMN };
enum { DIMENSIONS, MATRICES, ROWS, COLUMNS, SHAPE_SIZE };

// Writes a row of the table's shapes.
inline void put_shape(const Shape& shape, i64* to) {
    to[DIMENSIONS] = shape.dimensions;
    to[ROWS] = to[COLUMNS] = to[MATRICES] = 1;
    for (i64 d = 0; d < shape.dimensions; ++d)
        to[d + 2 < shape.dimensions ? MATRICES : d + 2 == shape.dimensions ? ROWS : COLUMNS]
            *= shape.sizes[d];
}

// Largest number of axes of a view, as in group_view.py.
constexpr i64 VIEW_AXES = 32;

// The shape in which the rule sees a parameter: that of the group's view if there is one, else the
// parameter's own.
struct SeenShape : Shape {
    bool fits = true; // whether the view has as many elements as the parameter

    SeenShape(const Tensor& param, const i64* view) : Shape(param) {
        if (!view) return;
        i64 known_product = 1, inferred_axis = -1; // of the given sizes; the axis of size -1
        dimensions = view[0];
        sizes = view_sizes;
        for (i64 d = 0; d < dimensions; ++d) {
            view_sizes[d] = view[d + 1];
            if (view_sizes[d] < 0) inferred_axis = d;
            else known_product *= view_sizes[d];
        }
        fits = inferred_axis < 0 ? known_product == param.elements
                                 : known_product && param.elements % known_product == 0;
        if (fits && inferred_axis >= 0)
            view_sizes[inferred_axis] = param.elements / known_product;
    }

    SeenShape(const SeenShape&) = delete;

private:
    i64 view_sizes[VIEW_AXES];
};

// Reads and writes single tensors of a request's streams.
struct Streams {
    const Request& request;
    const Layout& layout;

    void put(i64 stream, i64 t, const Tensor& tensor) const {
        request.address[stream * request.tensor_count + t] = tensor.address;
        request.handles[stream * request.tensor_count + t] = tensor.handle;
        request.dtypes[t] |= shifted_to_stream(u64(tensor.dtype), stream);
    }

    // Returns the view of a tensor's group; null if the group has none.
    const i64* view_of(i64 t) const {
        return request.views ? request.views[request.group[t]] : nullptr;
    }

    bool is_tensor(Object object) const {
        const Object type = type_of(object);
        return type == layout.tensor_type || type == layout.parameter_type;
    }

    // Returns the format of a quantized state; null if the object is not the expected one.
    const CodeFormat* codes_of(Object object, i64 stream, i64 t) const {
        if (!request.expected_codes || stream >= request.stream_count) return nullptr;
        const bool is_expected = object == request.expected_codes[stream * request.tensor_count + t];
        return is_expected ? request.code_formats + stream : nullptr;
    }

    // Returns a plain tensor itself, and the local shard of a DTensor. Returns null if the tensor's
    // sharding spec is not as expected.
    Object local_tensor(Object object, i64 stream, i64 t) const {
        const bool is_sharded = type_of(object) == layout.dtensor_type;
        const i64 place = stream * request.tensor_count + t;
        const Object expected_spec =
            request.expected_specs ? request.expected_specs[place] : nullptr;
        if (is_sharded && at<Object>(object, layout.spec) != expected_spec) return nullptr;
        if (!is_sharded && expected_spec) return nullptr;
        if (is_sharded) object = at<Object>(object, layout.local);
        return object && is_tensor(object) ? object : nullptr;
    }

    // Returns the handle of a gradient, or of its local shard. Returns null as `local_tensor` does.
    const void* local_gradient(const void* grad, i64 t) const {
        if (!request.expected_specs || !request.expected_specs[request.tensor_count + t])
            return grad;
        const Object object = at<Object>(at<const void*>(grad, 0), layout.object);
        const Object local = object ? local_tensor(object, 1, t) : nullptr;
        return local ? local + layout.implementation : nullptr;
    }

    // Tells whether all step counts are 0 or positive, by the sign bit in their last byte. With a
    // negative step count, Python gathers the step's tensors and raises an error.
    bool step_counts_are_valid() const {
        if (!request.has_step_count) return true;
        for (i64 t = 0; t < request.tensor_count; ++t) {
            const i64 bytes = itemsize(of_stream(request.dtypes[t], request.stream_count));
            const void* const count =
                request.address[request.stream_count * request.tensor_count + t];
            if (bytes && at<signed char>(count, bytes - 1) < 0) return false;
        }
        return true;
    }

    void prefetch_implementation(const void* handle) const {
        const char* const implementation = at<const char*>(handle, 0);
        prefetch(implementation);
        prefetch(implementation + layout.dispatch_keys);
    }

    void prefetch_storage(const void* handle) const {
        prefetch(at<const void*>(at<const void*>(handle, 0), STORAGE));
    }
};

}  // namespace
