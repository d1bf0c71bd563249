// One pass over one block of a tensor, tile by tile.
#include "optgen/runtime/fused_cpu/include/strips.h"
#include "optgen/runtime/fused_cpu/include/sums.h"

namespace optgen {

template <class C, bool HAS_AXES, bool HAS_LARGEST>
struct Part : Sums<C, HAS_AXES, HAS_LARGEST> {
    using It = Sums<C, HAS_AXES, HAS_LARGEST>;
    using It::rule, It::tensor, It::job, It::pass, It::written;
    using It::band, It::chunk, It::left, It::right, It::rows_summed;
    using It::buffer, It::wide_buffer, It::is_summed_in_loop;

    const bool unscales;
    const u64 touched;
    const int loops;
    const u64 by_strips; // streams that go through buffers strip by strip

    APART Part(
        const Outline<C>& given_rule, const Subject<C>& given_tensor, const Pass& given_pass,
        const Reach& reach, bool first, C* scratch)
        : It{given_rule, given_tensor, given_tensor.job, given_pass, scratch, reach.written},
          unscales(first && tensor.table.grad_scale), touched(reach.touched), loops(reach.loops),
          by_strips(reach.plain && loops == 1 && !job.stored ? converted() : 0) {
        for (int n = 0; first && n < rule.numbers; ++n) tensor.partials[n] = 0;
    }

    // What a pass of one loop reads and writes in another type than is computed in. Sums of rows
    // that end within a strip are the same without strips.
    u64 converted() const {
        const bool worth = job.from_memory || job.columns > SHORT_SPAN;
        if (!worth || !job.by_rows || job.local || job.is_flat()) return 0;
        u64 found = 0;
        for (u64 streams = touched & rule.elements; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            found |= u64(tensor.type(v) != TYPE<C> && tensor.type(v) != ABSENT) << v;
        }
        return found;
    }

    void run(i64 block) {
        if (job.local) local(block);
        else if constexpr (HAS_AXES) shared(block);
    }

    // Whole matrices.
    void local(i64 block) {
        const i64 size = job.size(), all = rounded_up(job.batch, job.unit) / job.unit;
        const i64 first = all * block / job.blocks * job.unit;
        const i64 end = least(job.batch, all * (block + 1) / job.blocks * job.unit);
        for (i64 m = first; m < end; m += job.unit) {
            const i64 n = least(job.unit, end - m);
            tile({m, m * job.rows, m * job.columns, m * size, n, n * job.rows, n * job.columns,
                  n * size});
        }
    }

    // Some rows of a matrix: a few short ones at once, or a long one part by part.
    void shared(i64 block) {
        const i64 matrix = block / (job.bands * job.chunks);
        band = block / job.chunks % job.bands, chunk = block % job.chunks;
        const i64 first = job.rows * band / job.bands, last = job.rows * (band + 1) / job.bands;
        left = chunk * CHUNK, right = least(job.columns, left + CHUNK);
        It::begin_sums(matrix, first, last);
        for (i64 r = first; r < last; r += job.unit) {
            const i64 rows = least(job.unit, last - r), row = matrix * job.rows + r;
            for (i64 c = left; c < right; c += job.width) {
                const i64 columns = least(job.width, right - c);
                tile({matrix, row, matrix * job.columns + c, row * job.columns + c, 1, rows,
                      columns, rows * columns});
            }
            if ((rows_summed += rows) + job.unit > RUN) It::end_run(matrix);
        }
        It::end_run(matrix);
    }

    APART void tile(const Tile& tile) {
        Place at[MOST_VALUES];
        const bool fetches = job.from_memory && job.stored && (job.local || !job.by_rows);
        if (unscales) unscale(tile);
        for (int v = 0; v < rule.values; ++v)
            at[v] = touched >> v & 1 ? open(v, tile) : Place{nullptr};
        if constexpr (HAS_AXES)
            if (job.by_rows && written >> rule.streams) It::open_sums(tile, at);
        for (int k = 0, loop_count = 0; k < rule.step_count; ++k) {
            if (!(pass.steps >> k & 1)) continue;
            const Step& step = rule.steps[k];
            if (step.kind == Step::LOOP) {
                if (fetches && loops > 1) fetch(tile, loop_count++);
                loop(k, step, tile, at);
            } else if (is_summed_in_loop(step)) {
                if constexpr (HAS_AXES)
                    if (step.axes == ROW && !job.has_whole(ROW)) It::add_rows(step, tile, at);
            } else if (step.kind == Step::SUM) It::template reduce<Sum>(step, tile, at);
            else if constexpr (HAS_LARGEST) It::template reduce<Largest>(step, tile, at);
        }
        for (int v = 0; v < rule.streams; ++v)
            if ((pass.stores & written & ~by_strips) >> v & 1 && at[v].at == buffer(v))
                put(v, tile);
    }

    // Where a value of a tile is read and written: in the tensor itself if that can be.
    Place open(int v, const Tile& tile) const {
        const int axes = rule.axes[v];
        if (!job.has_whole(axes)) return {tensor.whole[v] + tile.first(axes)};
        const u32 type = v < rule.streams ? tensor.type(v) : TYPE<C>;
        if (type == ABSENT) return {nullptr};
        if (v >= rule.streams || by_strips >> v & 1) return {buffer(v)};
        const bool as_stored = type == TYPE<C> || (job.stored && rule.elements >> v & 1);
        if (as_stored && (!(written >> v & 1) || pass.stores >> v & 1))
            return Place{tensor.address(v)}.moved(tile.first(axes) * bytes_of(type));
        const i64 n = tile.count(axes) / lies_apart(axes), bytes = n * bytes_of(type);
        for (i64 r = 0; r < lies_apart(axes); ++r) {
            const i64 first = tile.first(axes) + r * job.columns;
            const Place from = Place{tensor.address(v)}.moved(first * bytes_of(type));
            if (job.from_memory) ask(from.moved(bytes).at, bytes);
            const Place to = Place{buffer(v)}.moved(r * (as_stored ? bytes : n * i64(sizeof(C))));
            if (as_stored) __builtin_memcpy(to.at, from.at, u64(bytes));
            else read<KNOWN>(type, from.at, 0, n, static_cast<C*>(to.at));
        }
        return {buffer(v)};
    }

    void put(int v, const Tile& tile) const {
        const int axes = rule.axes[v];
        const i64 n = tile.count(axes) / lies_apart(axes);
        for (i64 r = 0; r < lies_apart(axes); ++r)
            write<KNOWN>(tensor.type(v), buffer(v) + r * n, tensor.address(v),
                         tile.first(axes) + r * job.columns, n);
    }

    // In how many pieces a tile of these axes lies in memory: rows of some columns.
    i64 lies_apart(int axes) const {
        return job.is_flat() && axes == TENSOR ? job.rows : 1;
    }

    // Gradients are unscaled in place, as torch's fused kernels do.
    void unscale(const Tile& tile) const {
        const C scale = C(*tensor.table.grad_scale);
        const i64 n = tile.elements / lies_apart(TENSOR);
        C* const grads = buffer(1);
        for (i64 r = 0; r < lies_apart(TENSOR); ++r)
            for (i64 c = 0; c < n; c += job.span) {
                const i64 first = tile.element + r * job.columns + c, m = least(job.span, n - c);
                read<KNOWN>(tensor.type(1), tensor.address(1), first, m, grads);
                for (i64 i = 0; i < m; ++i) grads[i] /= scale;
                write<KNOWN>(tensor.type(1), grads, tensor.address(1), first, m);
            }
    }

    // Asks for a share of what the next tile reads: memory would rest while this one is computed
    // with.
    INLINE void fetch(const Tile& tile, int share) const {
        for (u64 streams = touched & ((1 << rule.streams) - 1); streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams), axes = rule.axes[v];
            if (!job.has_whole(axes)) continue;
            const i64 size = bytes_of(tensor.type(v)), n = tile.count(axes) * size;
            const char* const next =
                static_cast<const char*>(tensor.address(v)) + tile.first(axes) * size + n;
            const i64 first = n * share / loops / 64 * 64, end = n * (share + 1) / loops;
            ask(next + first, end - first);
        }
    }

    // A value of fewer axes than the loop is one number for all of it, or for a row, or spread.
    void loop(int k, const Step& step, const Tile& tile, const Place* at) const {
        const i64 n = tile.count(step.axes);
        if constexpr (HAS_AXES) {
            if (!job.by_rows) {
                Place seen[MOST_VALUES];
                for (u64 values = step.reads | step.writes; values; values &= values - 1) {
                    const int v = __builtin_ctzll(values);
                    seen[v] = rule.axes[v] == step.axes ? at[v] : widened(v, step.axes, tile, at[v]);
                }
                return rule.run(true, tensor.given, k, 1, n, seen);
            }
            const u64 apart = step.axes == TENSOR && lies_apart(TENSOR) > 1 ? in_place(at) : 0;
            if (step.axes == TENSOR && (job.distant || by_strips || job.is_flat())) {
                const u64 stored = pass.stores & written;
                return Strips<C>{rule, tensor, touched, by_strips, stored, apart, tile}.run(k, at);
            }
            if (step.axes == TENSOR)
                return rule.run(false, tensor.given, k, tile.rows, tile.columns, at);
        }
        rule.run(false, tensor.given, k, 1, n, at);
    }

    // The streams that a loop finds where they are.
    u64 in_place(const Place* at) const {
        u64 found = 0;
        for (u64 streams = touched & rule.elements; streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams);
            found |= u64(at[v].at != buffer(v)) << v;
        }
        return found;
    }

    Place widened(int v, int axes, const Tile& tile, C* from) const {
        const i64 rows = tile.rows / tile.matrices, columns = tile.columns / tile.matrices;
        const i64 n = tile.count(axes) / tile.count(rule.axes[v]);
        if (n == 1) return {from};
        if (rule.axes[v] == COLUMN && columns > 1)
            repeat(from, tile.matrices, rows, columns, wide_buffer(v));
        else spread(from, tile.count(rule.axes[v]), n, wide_buffer(v));
        return {wide_buffer(v)};
    }
};

}  // namespace optgen
