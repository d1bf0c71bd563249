// Updates the rows that sparse gradients touch. One thread sums the values of a row in order, and
// updates the row once. So results have the same bits for any number of threads.
#include "optgen/runtime/fused_cpu/include/touched_rows.h"

namespace optgen {

template <class S, class C>
void add(const void* stream, i64 first, i64 n, C* __restrict to) {
    const S* __restrict from = static_cast<const S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] += decode<S, C>(from[i]);
}

template <class C>
void add(u32 dtype, const void* stream, i64 first, i64 n, C* to) {
    if (dtype == FLOAT32) add<float>(stream, first, n, to);
    else if (dtype == FLOAT64) add<double>(stream, first, n, to);
    else if (dtype == BFLOAT16) add<bfloat16>(stream, first, n, to);
    else add<float16>(stream, first, n, to);
}

// Rows with fewer elements are updated in buffers, several rows at once.
constexpr i64 MIN_IN_PLACE_WIDTH = 16;

template <class R>
struct SparseKernel {
    static constexpr int STREAMS = R::STREAMS;

    const ElementwiseKernel<R>& kernel;
    const SparseGradients& gradients;
    const TouchedRows& touched;
    const Threads& threads;

    // Returns the number of elements of a row.
    i64 width(i64 t) const {
        const i64 count = gradients.value_counts[t];
        return count ? kernel.table.elements[t] / count : 0;
    }

    u32 dtype(i64 t, int stream) const { return dtype_of(kernel.table.dtypes[t], stream); }

    // Sums the gradient's values of a touched row: n elements of the row, from element `at` on.
    template <class C>
    void sum_values(i64 t, i64 row, i64 at, i64 n, C* to) const {
        const void* const values = kernel.address(1, t);
        const i64 row_size = width(t);
        i64 v = touched.first_value[row];
        read(dtype(t, 1), values, touched.values[v].position * row_size + at, n, to);
        while (++v < touched.first_value[row + 1])
            add(dtype(t, 1), values, touched.values[v].position * row_size + at, n, to);
        if (kernel.table.grad_scale)
            for (i64 i = 0; i < n; ++i) to[i] /= C(*kernel.table.grad_scale);
    }

    // Updates touched rows [low, high) in place, piece by piece.
    template <class C>
    void update_in_place(i64 t, i64 low, i64 high) const {
        C grads[BUFFER_ELEMENTS];
        Stream<C> streams[STREAMS];
        const i64 row_size = width(t);
        for (; low < high; ++low) {
            const i64 first = touched.values[touched.first_value[low]].row * row_size;
            for (i64 at = 0; at < row_size; at += BUFFER_ELEMENTS) {
                const i64 n = row_size - at < BUFFER_ELEMENTS ? row_size - at : BUFFER_ELEMENTS;
                for (int s = 0; s < STREAMS; ++s) {
                    C* const base = static_cast<C*>(kernel.address(s, t));
                    streams[s] = dtype(t, s) ? base + first + at : nullptr;
                }
                sum_values(t, low, at, n, streams[1] = grads);
                optgen::update<R, C>(
                    kernel.hypers(t), kernel.scalars(t), kernel.table.fresh[t], n, streams);
            }
        }
    }

    // `load` copies elements of a touched row to buffers, and `store` copies them back.
    template <class C>
    void load(i64 t, i64 row, i64 at, i64 n, const Stream<C>* to, i64 offset) const {
        const i64 first = touched.values[touched.first_value[row]].row * width(t) + at;
        for (int s = 0; s < STREAMS; ++s)
            if (s != 1 && to[s]) read(dtype(t, s), kernel.address(s, t), first, n, to[s] + offset);
    }

    template <class C>
    void store(i64 t, i64 row, i64 at, i64 n, const Stream<C>* from, i64 offset) const {
        const i64 first = touched.values[touched.first_value[row]].row * width(t) + at;
        for (int s = 0; s < STREAMS; ++s)
            if (s != 1 && is_written<R>(s) && from[s])
                write(dtype(t, s), from[s] + offset, kernel.address(s, t), first, n);
    }

    // Updates touched rows in buffers of the compute dtype, several narrow rows at once.
    template <class C>
    void update_through_buffers(i64 t, i64 low, i64 high) const {
        C buffer[STREAMS][BUFFER_ELEMENTS];
        Stream<C> streams[STREAMS];
        for (int s = 0; s < STREAMS; ++s) streams[s] = dtype(t, s) ? buffer[s] : nullptr;
        const i64 row_size = width(t);
        const i64 piece = row_size < BUFFER_ELEMENTS ? row_size : BUFFER_ELEMENTS;
        const i64 rows_at_once = BUFFER_ELEMENTS / piece;
        for (; low < high; low += rows_at_once) {
            const i64 count = high - low < rows_at_once ? high - low : rows_at_once;
            for (i64 at = 0; at < row_size; at += piece) {
                const i64 n = row_size - at < piece ? row_size - at : piece;
                for (i64 i = 0; i < count; ++i) {
                    load<C>(t, low + i, at, n, streams, i * n);
                    sum_values(t, low + i, at, n, buffer[1] + i * n);
                }
                optgen::update<R, C>(
                    kernel.hypers(t), kernel.scalars(t), kernel.table.fresh[t], count * n, streams);
                for (i64 i = 0; i < count; ++i) store<C>(t, low + i, at, n, streams, i * n);
            }
        }
    }

    template <class C>
    void update(i64 t, i64 low, i64 high) const {
        bool is_in_place = width(t) >= MIN_IN_PLACE_WIDTH;
        for (int s = 0; s < STREAMS; ++s)
            is_in_place = is_in_place
                && (s == 1 || dtype(t, s) == DTYPE<C> || dtype(t, s) == ABSENT);
        if (is_in_place) update_in_place<C>(t, low, high);
        else update_through_buffers<C>(t, low, high);
    }

    // Updates one thread's share of all touched rows. All shares have about the same size.
    void run_thread(i64 id, i64 team_size) const {
        i64 total = 0, elements_before = 0;
        for (i64 t = 0; t < kernel.table.tensor_count; ++t) total += touched_elements(t);
        const i64 low = total * id / team_size, high = total * (id + 1) / team_size;
        for (i64 t = 0; t < kernel.table.tensor_count; elements_before += touched_elements(t++)) {
            const i64 row_size = width(t);
            const i64 begin = touched.first_row[t], end = touched.first_row[t + 1];
            if (!row_size) continue;
            const i64 first = begin + rows_within(low - elements_before, row_size);
            const i64 limit = begin + rows_within(high - elements_before, row_size);
            const i64 last = limit < end ? limit : end;
            if (first >= last) continue;
            if (kernel.in_double(t)) update<double>(t, first, last);
            else update<float>(t, first, last);
        }
    }

    i64 touched_elements(i64 t) const {
        return (touched.first_row[t + 1] - touched.first_row[t]) * width(t);
    }

    // Returns how many rows begin within the first so many elements.
    static i64 rows_within(i64 elements, i64 row_size) {
        return elements > 0 ? (elements + row_size - 1) / row_size : 0;
    }

    static void enter(void* pointer) {
        const SparseKernel& region = *static_cast<const SparseKernel*>(pointer);
        region.run_thread(region.threads.id(), region.threads.team_size());
    }
};

// Takes one step of all tensors of a table with sparse gradients, and returns -1. If an index is
// out of range, changes nothing and returns the position of its tensor in the table.
template <class R>
i64 step_sparse(const Table& table, const SparseGradients& gradients, const Threads& threads) {
    if constexpr (SCATTER_ADDS<R>) {
        ScatterAddKernel<R> unchecked{nullptr, table, gradients, threads};
        if (unchecked.keeps_precision()) {
            const i64 invalid_tensor = unchecked.find_invalid();
            if (invalid_tensor >= 0) return invalid_tensor;
            const ElementwiseKernel<R> kernel(table);
            ScatterAddKernel<R> region{&kernel, table, gradients, threads};
            run_sparse(region, threads, kernel.traffic);
            return -1;
        }
    }
    const TouchedRows touched(table, gradients);
    if (touched.invalid_tensor >= 0) return touched.invalid_tensor;
    const ElementwiseKernel<R> kernel(table);
    SparseKernel<R> region{kernel, gradients, touched, threads};
    run_sparse(region, threads, kernel.traffic);
    return -1;
}

}  // namespace optgen
