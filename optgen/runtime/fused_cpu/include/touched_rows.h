// The rows that sparse gradients touch: their values, sorted by row.
#include "optgen/runtime/fused_cpu/include/scatter_add.h"

namespace optgen {

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

}  // namespace optgen
