// Shapes and strides of tensors: whether a tensor is dense, and whether two tensors have the same
// elements at the same offsets.
#include "optgen/runtime/fused_cpu/reader/tensor_objects.h"

namespace {

struct Shape {
    i64 dimensions;
    const i64* sizes;

    Shape(const Layout& layout, const Tensor& tensor) {
        const auto* const place
            = reinterpret_cast<const i64*>(at<const char*>(tensor.handle, 0) + layout.shape);
        dimensions = place[0];
        sizes = place + 1;
        if (dimensions > INLINE_DIMENSIONS) layout.sizes(tensor.handle, &sizes);
    }
};

const i64* strides_of(const Layout& layout, const Tensor& tensor) {
    const i64* strides;
    layout.strides(tensor.handle, &strides);
    return strides;
}

// Tells whether the elements fill one range of memory, in any order of dimensions.
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

// Tells whether two shapes are equal. If `reduced_axis` is k > 0, `a` must have size 1 along
// the k-th axis from the end, whatever the size of `b` there.
bool same_sizes(const Shape& a, const Shape& b, i64 reduced_axis = 0) {
    if (a.dimensions != b.dimensions) return false;
    for (i64 d = 0; d < a.dimensions; ++d)
        if (a.sizes[d] != (d == b.dimensions - reduced_axis ? 1 : b.sizes[d])) return false;
    return true;
}

// Tells whether tensors of one shape have the same elements at the same offsets in memory.
bool same_strides(const Layout& layout, const Tensor& a, const Tensor& b) {
    const Shape shape(layout, a);
    if (!same_sizes(shape, Shape(layout, b))) return false;
    if (a.contiguous && b.contiguous) return true;
    const i64 *const a_strides = strides_of(layout, a), *const b_strides = strides_of(layout, b);
    for (i64 d = 0; d < shape.dimensions; ++d)
        if (a_strides[d] != b_strides[d] && shape.sizes[d] != 1) return false;
    return true;
}

}  // namespace
