// Reduces numbers of which each belongs to another tensor. The result has the same bits for any
// order of the tensors.
#include "optgen/runtime/fused_cpu/include/suspending_tensor.h"

namespace optgen {

// Moves the number at `root` down a heap until no number below it is larger.
inline void sift_down(double* heap, i64 root, i64 count) {
    for (i64 child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && heap[child] < heap[child + 1]) ++child;
        if (!(heap[root] < heap[child])) return;
        const double larger = heap[child];
        heap[child] = heap[root], heap[root] = larger;
    }
}

// Sorts numbers in ascending order; none may be NaN.
inline void heapsort(double* numbers, i64 count) {
    for (i64 root = count / 2; root--;) sift_down(numbers, root, count);
    for (i64 last = count; --last > 0;) {
        const double largest = numbers[0];
        numbers[0] = numbers[last], numbers[last] = largest;
        sift_down(numbers, 0, last);
    }
}

// Sorts numbers, and returns their sum or the largest number; NaN if one is NaN. The sorted numbers
// are added one after another, as in wide_reductions.py.
inline double reduce_numbers(double* numbers, i64 count, bool is_maximum) {
    for (i64 i = 0; i < count; ++i)
        if (numbers[i] != numbers[i]) return numbers[i];
    heapsort(numbers, count);
    if (is_maximum) return numbers[count - 1];
    double sum = 0;
    for (i64 i = 0; i < count; ++i) sum += numbers[i];
    return sum;
}

}  // namespace optgen
