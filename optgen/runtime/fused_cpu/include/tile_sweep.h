// Runs one pass over one block of a tensor, tile by tile.
#include "optgen/runtime/fused_cpu/include/accumulators.h"

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

template <class C, bool HAS_AXES, bool HAS_MAX>
struct BlockSweep : Accumulators<C, HAS_AXES, HAS_MAX> {
    using Base = Accumulators<C, HAS_AXES, HAS_MAX>;
    using Base::rule, Base::tensor, Base::plan, Base::pass, Base::written_values;
    using Base::band, Base::chunk, Base::first_column, Base::end_column, Base::rows_summed;
    using Base::buffer, Base::broadcast_buffer, Base::is_summed_in_loop;

    const bool unscales;
    const u64 touched_values;
    const int loop_count;
    const u64 converted_streams; // streams that are converted strip by strip

    NOINLINE BlockSweep(
        const RuleDescriptor<C>& given_rule, const TensorContext<C>& given_tensor,
        const Pass& given_pass, const Footprint& footprint, bool is_first_pass, C* scratch)
        : Base{given_rule, given_tensor, given_tensor.plan, given_pass, scratch,
               footprint.written_values},
          unscales(is_first_pass && tensor.table.grad_scale),
          touched_values(footprint.touched_values), loop_count(footprint.loop_count),
          converted_streams(
              !footprint.has_maximum && loop_count == 1 && !plan.loop_dtype
                  ? find_converted_streams() : 0) {
        for (int n = 0; is_first_pass && n < rule.number_count; ++n) tensor.partials[n] = 0;
    }

    // Returns the streams to convert strip by strip: those of another dtype than the compute dtype.
    // Only the speed may depend on `step_exceeds_cache`: a row that fits into a strip has the same
    // sum with strips and without, and longer rows are always swept by strips.
    u64 find_converted_streams() const {
        const bool is_worthwhile = plan.step_exceeds_cache || plan.columns > CONVERTED_TILE;
        if (!is_worthwhile || !plan.by_rows || plan.has_whole_matrices || plan.has_whole_columns())
            return 0;
        u64 result = 0;
        for (u64 streams = touched_values & rule.element_streams; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            result |= u64(tensor.dtype(v) != DTYPE<C> && tensor.dtype(v) != ABSENT) << v;
        }
        return result;
    }

    void run(i64 block) {
        if (plan.has_whole_matrices) sweep_matrices(block);
        else if constexpr (HAS_AXES) sweep_rows(block);
    }

    // Sweeps tiles of whole matrices.
    void sweep_matrices(i64 block) {
        const i64 size = plan.matrix_size();
        const i64 tiles = rounded_up(plan.matrices, plan.tile_height) / plan.tile_height;
        const i64 first = tiles * block / plan.block_count * plan.tile_height;
        const i64 end =
            min(plan.matrices, tiles * (block + 1) / plan.block_count * plan.tile_height);
        for (i64 m = first; m < end; m += plan.tile_height) {
            const i64 n = min(plan.tile_height, end - m);
            sweep_tile({m, m * plan.rows, m * plan.columns, m * size, n, n * plan.rows,
                        n * plan.columns, n * size});
        }
    }

    // Sweeps rows of one matrix: several short rows in a tile, or a part of a long row.
    void sweep_rows(i64 block) {
        const i64 matrix = block / (plan.band_count * plan.chunk_count);
        band = block / plan.chunk_count % plan.band_count, chunk = block % plan.chunk_count;
        const i64 first = plan.rows * band / plan.band_count;
        const i64 last = plan.rows * (band + 1) / plan.band_count;
        first_column = chunk * CHUNK_COLUMNS;
        end_column = min(plan.columns, first_column + CHUNK_COLUMNS);
        Base::begin_sums(matrix, first, last);
        for (i64 r = first; r < last; r += plan.tile_height) {
            const i64 rows = min(plan.tile_height, last - r), row = matrix * plan.rows + r;
            for (i64 c = first_column; c < end_column; c += plan.tile_width) {
                const i64 columns = min(plan.tile_width, end_column - c);
                sweep_tile({matrix, row, matrix * plan.columns + c, row * plan.columns + c, 1,
                            rows, columns, rows * columns});
            }
            if ((rows_summed += rows) + plan.tile_height > SUMMED_ROWS) Base::end_run(matrix);
        }
        Base::end_run(matrix);
    }

    NOINLINE void sweep_tile(const Tile& tile) {
        Pointer at[MAX_VALUES];
        const bool prefetches = plan.step_exceeds_cache && plan.loop_dtype
            && (plan.has_whole_matrices || !plan.by_rows);
        if (unscales) unscale(tile);
        for (int v = 0; v < rule.value_count; ++v)
            at[v] = touched_values >> v & 1 ? locate(v, tile) : Pointer{nullptr};
        if constexpr (HAS_AXES)
            if (plan.by_rows && written_values >> rule.stream_count)
                Base::assign_sum_buffers(tile, at);
        for (int k = 0, loop_index = 0; k < rule.step_count; ++k) {
            if (!(pass.tile_steps >> k & 1)) continue;
            const Step& step = rule.steps[k];
            if (step.kind == Step::LOOP) {
                if (prefetches && loop_count > 1) prefetch_next(tile, loop_index++);
                run_loop(k, step, tile, at);
            } else if (step.kind == Step::DRAW) {
                draw(k, tile, static_cast<C*>(at[only_value(step.written_values)].at));
            } else if (is_summed_in_loop(step)) {
                if constexpr (HAS_AXES)
                    if (step.axes == ROW && !plan.is_complete(ROW)) Base::add_rows(step, tile, at);
            } else if (step.kind == Step::SUM) Base::template reduce<Sum>(step, tile, at);
            else if constexpr (HAS_MAX) Base::template reduce<Max>(step, tile, at);
        }
        const u64 buffered_values = pass.stored_values & written_values & ~converted_streams;
        for (int v = 0; v < rule.stream_count; ++v)
            if (buffered_values >> v & 1 && at[v].at == buffer(v)) write_back(v, tile);
    }

    // Returns the address at which loops read and write a tile's value: in the tensor if possible,
    // else in a buffer, into which this function copies or converts the value.
    Pointer locate(int v, const Tile& tile) const {
        const int axes = rule.axes[v];
        if (!plan.is_complete(axes)) return {tensor.axis_values[v] + tile.first(axes)};
        const u32 dtype = v < rule.stream_count ? tensor.dtype(v) : DTYPE<C>;
        if (dtype == ABSENT) return {nullptr};
        if (v >= rule.stream_count || converted_streams >> v & 1) return {buffer(v)};
        const bool keeps_dtype =
            dtype == DTYPE<C> || (plan.loop_dtype && rule.element_streams >> v & 1);
        if (keeps_dtype && (!(written_values >> v & 1) || pass.stored_values >> v & 1))
            return Pointer{tensor.address(v)}.plus(tile.first(axes) * itemsize(dtype));
        if (dtype == INT8) {
            read_tile_codes(v, tile);
            return {buffer(v)};
        }
        const i64 n = tile.count(axes) / row_pieces(axes), bytes = n * itemsize(dtype);
        for (i64 r = 0; r < row_pieces(axes); ++r) {
            const i64 first = tile.first(axes) + r * plan.columns;
            const Pointer from = Pointer{tensor.address(v)}.plus(first * itemsize(dtype));
            if (plan.step_exceeds_cache) prefetch_range(from.plus(bytes).at, bytes);
            const Pointer to =
                Pointer{buffer(v)}.plus(r * (keeps_dtype ? bytes : n * i64(sizeof(C))));
            if (keeps_dtype) __builtin_memcpy(to.at, from.at, u64(bytes));
            else read<COMPILED_DTYPES>(dtype, from.at, 0, n, static_cast<C*>(to.at));
        }
        return {buffer(v)};
    }

    // Reads the codes of a tile, which has whole blocks of a tensor without rows and columns.
    void read_tile_codes(int v, const Tile& tile) const {
        const i64 elements = tensor.table.elements[plan.tensor], next = tile.element + tile.elements;
        if (plan.step_exceeds_cache)
            prefetch_range(
                Pointer{tensor.address(v)}.plus(code_bytes(rule.codes[v].map, next)).at,
                code_bytes(rule.codes[v].map, tile.elements));
        read_codes(
            rule.codes[v], tensor.address(v), elements, tile.element, tile.elements, buffer(v));
    }

    void write_back(int v, const Tile& tile) const {
        if (tensor.dtype(v) == INT8) {
            const i64 elements = tensor.table.elements[plan.tensor];
            return write_codes(
                rule.codes[v], buffer(v), tensor.address(v), elements, tile.element, tile.elements);
        }
        const int axes = rule.axes[v];
        const i64 n = tile.count(axes) / row_pieces(axes);
        for (i64 r = 0; r < row_pieces(axes); ++r)
            write<COMPILED_DTYPES>(
                tensor.dtype(v), buffer(v) + r * n, tensor.address(v),
                tile.first(axes) + r * plan.columns, n);
    }

    // Draws the random numbers of a tile's elements. A tile's pieces are adjacent in the buffer.
    void draw(int k, const Tile& tile, C* to) const {
        const i64 n = tile.elements / row_pieces(TENSOR);
        for (i64 r = 0; r < row_pieces(TENSOR); ++r)
            rule.draw(tensor.inputs, k, tile.element + r * plan.columns, n, to + r * n);
    }

    // Returns in how many pieces of memory a tile's values of these axes lie. The elements of a
    // tile of whole columns lie in one piece per row.
    i64 row_pieces(int axes) const {
        return plan.has_whole_columns() && axes == TENSOR ? plan.rows : 1;
    }

    // Unscales gradients in place, as torch's fused kernels do.
    void unscale(const Tile& tile) const {
        const C scale = C(*tensor.table.grad_scale);
        const i64 n = tile.elements / row_pieces(TENSOR);
        C* const grads = buffer(1);
        for (i64 r = 0; r < row_pieces(TENSOR); ++r)
            for (i64 c = 0; c < n; c += plan.tile_elements) {
                const i64 first = tile.element + r * plan.columns + c;
                const i64 count = min(plan.tile_elements, n - c);
                if (tensor.dtype(1) == DTYPE<C>) {
                    C* const stored = static_cast<C*>(tensor.address(1)) + first;
                    for (i64 i = 0; i < count; ++i) stored[i] /= scale;
                    continue;
                }
                read<COMPILED_DTYPES>(tensor.dtype(1), tensor.address(1), first, count, grads);
                for (i64 i = 0; i < count; ++i) grads[i] /= scale;
                write<COMPILED_DTYPES>(tensor.dtype(1), grads, tensor.address(1), first, count);
            }
    }

    // Prefetches a share of the next tile's streams: each loop over this tile prefetches one share.
    // If one loop prefetched all shares, memory would be idle during the other loops.
    INLINE void prefetch_next(const Tile& tile, int share) const {
        const u64 all_streams = (1 << rule.stream_count) - 1;
        for (u64 streams = touched_values & all_streams; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams), axes = rule.axes[v];
            if (!plan.is_complete(axes)) continue;
            const i64 size = itemsize(tensor.dtype(v)), n = tile.count(axes) * size;
            const char* const next =
                static_cast<const char*>(tensor.address(v)) + tile.first(axes) * size + n;
            const i64 first = n * share / loop_count / 64 * 64, end = n * (share + 1) / loop_count;
            prefetch_range(next + first, end - first);
        }
    }

    // Runs a loop. If a value has fewer axes than the loop, the loop reads one number of it for all
    // elements or for each row, or the value is first broadcast to the elements.
    void run_loop(int k, const Step& step, const Tile& tile, const Pointer* at) const {
        const i64 n = tile.count(step.axes);
        if constexpr (HAS_AXES) {
            if (!plan.by_rows) {
                Pointer pointers[MAX_VALUES];
                for (u64 values = step.read_values | step.written_values; values;
                     values &= values - 1) {
                    const int v = __builtin_ctzll(values);
                    // A null pointer stands for an absent state.
                    const bool broadcasts = rule.axes[v] != step.axes && at[v].at;
                    pointers[v] =
                        broadcasts ? broadcast_to_elements(v, step.axes, tile, at[v]) : at[v];
                }
                return rule.run(
                    /*expanded=*/true, tensor.inputs, k, /*rows=*/1, n, pointers);
            }
            const u64 gapped_streams =
                step.axes == TENSOR && row_pieces(TENSOR) > 1 ? in_place_streams(at) : 0;
            if (step.axes == TENSOR
                && (plan.exceeds_cache || converted_streams || plan.has_whole_columns())) {
                const u64 stored_streams = pass.stored_values & written_values;
                return StripMinedLoop<C>{
                    rule, tensor, touched_values, converted_streams, stored_streams, gapped_streams,
                    tile}.run(k, at);
            }
            if (step.axes == TENSOR)
                return rule.run(
                    /*expanded=*/false, tensor.inputs, k, tile.rows, tile.columns, at);
        }
        if (step.axes == TENSOR && n > SHORT_ROW_TILE && !plan.by_rows) return run_parts(k, n, at);
        rule.run(/*expanded=*/false, tensor.inputs, k, /*rows=*/1, n, at);
    }

    // Runs a loop over n elements, a part at a time: a longer sum in the compute dtype would be
    // less exact.
    void run_parts(int k, i64 n, const Pointer* at) const {
        Pointer pointers[MAX_VALUES];
        for (i64 first = 0; first < n; first += SHORT_ROW_TILE) {
            for (int v = 0; v < rule.value_count; ++v)
                pointers[v] = at[v].plus(first * rule.bytes_per_number(v));
            const i64 part = min(SHORT_ROW_TILE, n - first);
            rule.run(/*expanded=*/false, tensor.inputs, k, /*rows=*/1, part, pointers);
        }
    }

    // Returns the streams that a loop reads in place.
    u64 in_place_streams(const Pointer* at) const {
        u64 result = 0;
        for (u64 streams = touched_values & rule.element_streams; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            result |= u64(at[v].at != buffer(v)) << v;
        }
        return result;
    }

    Pointer broadcast_to_elements(int v, int axes, const Tile& tile, C* from) const {
        const i64 rows = tile.rows / tile.matrices, columns = tile.columns / tile.matrices;
        const i64 repeats = tile.count(axes) / tile.count(rule.axes[v]);
        if (repeats == 1) return {from};
        if (rule.axes[v] == COLUMN && columns > 1)
            repeat_rows(from, tile.matrices, rows, columns, broadcast_buffer(v));
        else repeat_interleave(from, tile.count(rule.axes[v]), repeats, broadcast_buffer(v));
        return {broadcast_buffer(v)};
    }
};

}  // namespace optgen
