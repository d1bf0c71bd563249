// Updates the rows that sparse gradients touch. One thread sums the values of a row in order, and
// updates the row once. So results have the same bits for any number of threads.
#include "optgen/runtime/fused_cpu/include/elementwise_kernel.h"

namespace optgen {

// Sparse gradients of the table's tensors. The gradient stream is a list of values, and value i
// belongs to row indices[i] of the parameter.
struct SparseGradients {
    const i64* const* indices; // [tensor][value]
    const i64* value_counts;   // [tensor], number of values
    const i64* row_counts;     // [tensor], number of rows of the parameter
};

// Adds values to their rows one by one, in order, without sorting or summing them first.
template <class R>
struct ScatterAddKernel {
    const ElementwiseKernel<R>* kernel; // null until indices are checked: making it advances counts
    const Table& table;
    const SparseGradients& gradients;

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
                const i64 count = min(width - at, piece);
                streams[0] = param + indices[i] * width + at;
                streams[1] = grads + i * width + at;
                if (table.grad_scale) streams[1] = unscaled(streams[1], count, buffer);
                update<R, C>(kernel->inputs(t), count, streams);
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
};

// Value of a gradient: its row, and its position among the values.
struct SparseValue {
    i64 row, position;
};

// Sorts values by row with a stable radix sort, lowest bits first. Returns the array that holds the
// result: `values` or `buffer`.
inline SparseValue* radix_sorted(SparseValue* values, SparseValue* buffer, i64 n, i64 rows) {
    constexpr int BITS = 11;
    i64 starts[1 << BITS];
    for (int shift = 0; (rows - 1) >> shift > 0; shift += BITS) {
        auto digit = [shift](const SparseValue& v) { return (v.row >> shift) & ((1 << BITS) - 1); };
        for (i64& start : starts) start = 0;
        for (i64 i = 0; i < n; ++i) ++starts[digit(values[i])];
        i64 sum = 0;
        for (i64& start : starts) {
            const i64 count = start;
            start = sum;
            sum += count;
        }
        for (i64 i = 0; i < n; ++i) buffer[starts[digit(values[i])]++] = values[i];
        SparseValue* const swapped = values;
        values = buffer;
        buffer = swapped;
    }
    return values;
}

// Touched rows of all tensors.
struct TouchedRows {
    HeapArray<SparseValue> values; // of all tensors, each tensor's sorted by row
    HeapArray<i64> first_value;    // [touched row]: its first value; then the number of values
    HeapArray<i64> first_row;      // [tensor]: its first touched row; then the number of rows
    i64 invalid_tensor = -1;       // position of a tensor with an index out of range; -1: none

    TouchedRows(const Table& table, const SparseGradients& gradients)
        : values(value_count(table, gradients) + 1), first_value(value_count(table, gradients) + 1),
          first_row(table.tensor_count + 1) {
        i64 at = 0, row = 0;
        for (i64 t = 0; t < table.tensor_count && invalid_tensor < 0; ++t) {
            first_row[t] = row;
            const i64 count = gradients.value_counts[t], end = at + count;
            if (!collect(gradients.indices[t], count, gradients.row_counts[t], at))
                invalid_tensor = t;
            for (; at < end; ++at)
                if (at == end - count || values[at].row != values[at - 1].row)
                    first_value[row++] = at;
        }
        first_row[table.tensor_count] = row;
        first_value[row] = at;
    }

    static i64 value_count(const Table& table, const SparseGradients& gradients) {
        i64 sum = 0;
        for (i64 t = 0; t < table.tensor_count; ++t) sum += gradients.value_counts[t];
        return sum;
    }

    // Writes one tensor's values to `at`, sorted. Returns false if an index is out of range.
    bool collect(const i64* indices, i64 n, i64 rows, i64 at) {
        SparseValue* const target = values.data + at;
        bool is_sorted = true;
        for (i64 i = 0; i < n; ++i) {
            if (indices[i] < 0 || indices[i] >= rows) return false;
            is_sorted = is_sorted && (i == 0 || indices[i] >= indices[i - 1]);
            target[i] = {indices[i], i};
        }
        if (is_sorted) return true;
        const HeapArray<SparseValue> buffer(n);
        const SparseValue* const result = radix_sorted(target, buffer.data, n, rows);
        if (result != target) __builtin_memcpy(target, result, u64(n) * sizeof(SparseValue));
        return true;
    }
};

template <class S, class C>
void add(const void* stream, i64 first, i64 n, C* __restrict to) {
    const S* __restrict from = static_cast<const S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] += decode<S, C>(from[i]);
}

template <class C>
void add(u32 dtype, const void* stream, i64 first, i64 n, C* to) {
    with_storage_type(dtype, [&](auto s) { add<decltype(s)>(stream, first, n, to); });
}

// Rows with fewer elements are updated in buffers, several rows at once.
constexpr i64 MIN_IN_PLACE_WIDTH = 16;

template <class R>
struct SparseKernel {
    static constexpr int STREAMS = R::STREAMS;

    const ElementwiseKernel<R>& kernel;
    const SparseGradients& gradients;
    const TouchedRows& touched;

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
                const i64 n = min(row_size - at, BUFFER_ELEMENTS);
                for (int s = 0; s < STREAMS; ++s) {
                    C* const base = static_cast<C*>(kernel.address(s, t));
                    streams[s] = dtype(t, s) ? base + first + at : nullptr;
                }
                sum_values(t, low, at, n, streams[1] = grads);
                optgen::update<R, C>(kernel.inputs(t), n, streams);
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
        const i64 piece = min(row_size, BUFFER_ELEMENTS);
        const i64 rows_at_once = BUFFER_ELEMENTS / piece;
        for (; low < high; low += rows_at_once) {
            const i64 count = min(high - low, rows_at_once);
            for (i64 at = 0; at < row_size; at += piece) {
                const i64 n = min(row_size - at, piece);
                for (i64 i = 0; i < count; ++i) {
                    load<C>(t, low + i, at, n, streams, i * n);
                    sum_values(t, low + i, at, n, buffer[1] + i * n);
                }
                optgen::update<R, C>(kernel.inputs(t), count * n, streams);
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
            const i64 last = min(begin + rows_within(high - elements_before, row_size), end);
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
};

// Takes one step of all tensors of a table with sparse gradients, and returns -1. If an index is
// out of range, changes nothing and returns the position of its tensor in the table.
template <class R>
i64 step_sparse(const Table& table, const SparseGradients& gradients, const Threads& threads) {
    if constexpr (R::SCATTER_ADDS) {
        ScatterAddKernel<R> unchecked{nullptr, table, gradients};
        if (unchecked.keeps_precision()) {
            const i64 invalid_tensor = unchecked.find_invalid();
            if (invalid_tensor >= 0) return invalid_tensor;
            const ElementwiseKernel<R> kernel(table);
            ScatterAddKernel<R> region{&kernel, table, gradients};
            run_on_threads(region, threads, kernel.traffic);
            return -1;
        }
    }
    const TouchedRows touched(table, gradients);
    if (touched.invalid_tensor >= 0) return touched.invalid_tensor;
    const ElementwiseKernel<R> kernel(table);
    SparseKernel<R> region{kernel, gradients, touched};
    run_on_threads(region, threads, kernel.traffic);
    return -1;
}

}  // namespace optgen
