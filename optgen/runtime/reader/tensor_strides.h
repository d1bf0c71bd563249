// Shapes and strides of tensors: whether a tensor is dense, and whether two tensors have the same
// elements at the same offsets.
#include "optgen/runtime/reader/tensor_objects.h"

namespace {

// Tells whether the elements fill one range of memory, in any order of dimensions.
bool is_dense(const Tensor& tensor) {
    if (tensor.contiguous) return true;
    i64 filled = 1;
    while (filled < tensor.elements) {
        i64 d = 0;
        while (d < tensor.dimensions && (tensor.strides[d] != filled || tensor.sizes[d] == 1)) ++d;
        if (d == tensor.dimensions) return false;
        filled *= tensor.sizes[d];
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
bool same_strides(const Tensor& a, const Tensor& b) {
    if (a.contiguous != b.contiguous || !same_sizes(a, b)) return false;
    if (a.contiguous) return true;
    for (i64 d = 0; d < a.dimensions; ++d)
        if (a.strides[d] != b.strides[d] && a.sizes[d] != 1) return false;
    return true;
}

}  // namespace
