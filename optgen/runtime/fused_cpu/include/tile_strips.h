// Loop over the elements of a tile, strip by strip (a strip-mined loop). While the loop computes
// one strip, it prefetches later ones. Streams of another dtype are converted strip by strip, in
// buffers that stay in the first-level cache.
#include "optgen/runtime/fused_cpu/include/rule_descriptor.h"

namespace optgen {

template <class C>
struct StripMinedLoop {
    const RuleDescriptor<C>& rule;
    const TensorContext<C>& tensor;
    const u64 touched_values;    // values that the pass reads or writes, a bit each
    const u64 converted_streams; // streams that go through buffers
    const u64 stored_streams;    // streams that the pass stores
    const u64 gapped_streams;    // streams whose rows are not adjacent
    const Tile& tile;

    void run(int loop, const Pointer* at) const {
        const i64 length = converted_streams ? CONVERTED_TILE : STRIP, width = tile.columns;
        const i64 rows_per_strip = gapped_streams ? 1 : max(1, length / width);
        const i64 gap = tensor.plan.columns - width;
        Pointer pointers[MAX_VALUES];
        for (int v = 0; v < rule.value_count; ++v) pointers[v] = at[v];
        i64 element = tile.element;
        for (i64 row = 0; row < tile.rows; row += rows_per_strip) {
            const i64 rows = min(rows_per_strip, tile.rows - row);
            for (i64 column = 0; column < width; column += length) {
                const i64 columns = min(length, width - column), n = rows * columns;
                load_strip(loop, element, n, pointers);
                rule.run(/*expanded=*/false, tensor.inputs, loop, rows, columns, pointers);
                store_strip(element, n, pointers);
                element += n;
                advance(TENSOR, n, pointers);
                advance(COLUMN, columns, pointers);
            }
            advance(ROW, rows, pointers);
            advance(COLUMN, -width, pointers);
            for (u64 streams = gapped_streams; streams; streams &= streams - 1) {
                Pointer& pointer = pointers[__builtin_ctzll(streams)];
                pointer = pointer.plus(gap * rule.element_bytes);
            }
            element += gapped_streams ? gap : 0;
        }
    }

    char* address_of(int v, i64 element) const {
        return static_cast<char*>(tensor.address(v)) + element * itemsize(tensor.dtype(v));
    }

    // Prefetches later strips, and converts the strip's streams into their buffers.
    void load_strip(int loop, i64 element, i64 n, const Pointer* pointers) const {
        for (u64 streams = rule.steps[loop].read_values & rule.element_streams;
             streams && tensor.plan.step_exceeds_cache; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            prefetch_range(address_of(v, element) + PREFETCH_BYTES, n * itemsize(tensor.dtype(v)));
        }
        for (u64 streams = converted_streams; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            read<COMPILED_DTYPES>(
                tensor.dtype(v), tensor.address(v), element, n, static_cast<C*>(pointers[v].at));
        }
    }

    // Converts the buffers back, and stores them.
    void store_strip(i64 element, i64 n, const Pointer* pointers) const {
        for (u64 streams = converted_streams & stored_streams; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            write<COMPILED_DTYPES>(
                tensor.dtype(v), static_cast<C*>(pointers[v].at), tensor.address(v), element, n);
        }
    }

    // Advances the pointers to values of these axes by n numbers.
    void advance(int axes, i64 n, Pointer* pointers) const {
        for (u64 values = touched_values & ~converted_streams; values; values &= values - 1) {
            const int v = __builtin_ctzll(values);
            if (rule.axes[v] == axes) pointers[v] = pointers[v].plus(n * rule.bytes_per_number(v));
        }
    }
};

}  // namespace optgen
