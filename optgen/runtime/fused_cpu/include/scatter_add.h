// Scatter-add: sparse gradients of rules that only add multiples of the gradient.
#include "optgen/runtime/fused_cpu/include/elementwise_kernel.h"

namespace optgen {

// Sparse gradients of the table's tensors. The gradient stream is a list of values, and value i
// belongs to row indices[i] of the parameter.
struct SparseGradients {
    const i64* const* indices; // [tensor][value]
    const i64* value_counts;   // [tensor], number of values
    const i64* row_counts;     // [tensor], number of rows of the parameter
};

// Whether a rule only adds multiples of the gradient.
template <class R, class = void>
constexpr bool SCATTER_ADDS = false;
template <class R>
constexpr bool SCATTER_ADDS<R, decltype(void(R::SCATTER_ADDS))> = R::SCATTER_ADDS;

// Adds values to their rows one by one, in order, without sorting or summing them first.
template <class R>
struct ScatterAddKernel {
    const ElementwiseKernel<R>* kernel; // null until indices are checked: making it advances counts
    const Table& table;
    const SparseGradients& gradients;
    const Threads& threads;

    // Tells whether values may be added one by one. Values of 16 bits may not: the sum of a row
    // must be rounded only once.
    bool keeps_precision() const {
        for (i64 t = 0; t < table.tensor_count; ++t) {
            const u32 dtype = dtype_of(table.dtypes[t], 0);
            if (dtype != dtype_of(table.dtypes[t], 1) || itemsize(dtype) < 4) return false;
        }
        return true;
    }

    // Returns the position in the table of a tensor with an index out of range, or -1.
    i64 find_invalid() const {
        for (i64 t = 0; t < table.tensor_count; ++t)
            for (i64 i = 0; i < gradients.value_counts[t]; ++i)
                if (u64(gradients.indices[t][i]) >= u64(gradients.row_counts[t])) return t;
        return -1;
    }

    // Adds the values of one thread's rows. A row belongs to one thread.
    template <class C>
    void add(i64 t, i64 id, i64 team_size) const {
        // While a value is added, the row of a later value is prefetched, but at most 256 elements.
        constexpr i64 PREFETCH_VALUES = 8, PREFETCH_ELEMENTS = 256;
        const i64 n = gradients.value_counts[t], width = table.elements[t] / n;
        const i64* const indices = gradients.indices[t];
        C* const param = static_cast<C*>(kernel->address(0, t));
        C* const grads = static_cast<C*>(kernel->address(1, t));
        Stream<C> streams[R::STREAMS] = {};
        C buffer[BUFFER_ELEMENTS];
        const i64 piece = table.grad_scale ? BUFFER_ELEMENTS : width;
        for (i64 i = 0; i < n; ++i) {
            if (i + PREFETCH_VALUES < n) {
                const C* const next = param + indices[i + PREFETCH_VALUES] * width;
                for (i64 at = 0; at < width && at < PREFETCH_ELEMENTS; at += 64 / i64(sizeof(C)))
                    __builtin_prefetch(next + at, 1);
            }
            if (team_size > 1 && indices[i] % team_size != id) continue;
            for (i64 at = 0; at < width; at += piece) {
                const i64 count = width - at < piece ? width - at : piece;
                streams[0] = param + indices[i] * width + at;
                streams[1] = grads + i * width + at;
                if (table.grad_scale) streams[1] = unscaled(streams[1], count, buffer);
                update<R, C>(kernel->hypers(t), kernel->scalars(t), table.fresh[t], count, streams);
            }
        }
    }

    template <class C>
    C* unscaled(const C* grads, i64 n, C* to) const {
        for (i64 i = 0; i < n; ++i) to[i] = grads[i] / C(*table.grad_scale);
        return to;
    }

    void run_thread(i64 id, i64 team_size) const {
        for (i64 t = 0; t < table.tensor_count; ++t) {
            if (!gradients.value_counts[t]) continue;
            if (kernel->in_double(t)) add<double>(t, id, team_size);
            else add<float>(t, id, team_size);
        }
    }

    static void enter(void* pointer) {
        const ScatterAddKernel& region = *static_cast<const ScatterAddKernel*>(pointer);
        region.run_thread(region.threads.id(), region.threads.team_size());
    }
};

template <class K>
void run_sparse(K& region, const Threads& threads, i64 traffic) {
    if (threads.count > 1 && traffic > MIN_PARALLEL_BYTES)
        threads.parallel(K::enter, &region, unsigned(threads.count), 0);
    else
        region.run_thread(0, 1);
}

}  // namespace optgen
