// One pass over one block of a tensor, tile by tile.
#include "optgen/runtime/fused_cpu/outline.h"

namespace optgen {

// HAS_AXES, HAS_LARGEST: whether any rule of the source has rows and columns, or looks for the
// largest of something.
template <class C, bool HAS_AXES, bool HAS_LARGEST>
struct Part {
    const Outline<C>& rule;
    const Subject<C>& tensor;
    const Job& job;
    const Pass& pass;
    const bool unscales;
    C* const memory;
    const i64 room;
    const u64 touched, written;
    const int loops;
    i64 band = 0, chunk = 0, left = 0, right = 0;
    i64 rows_summed = 0; // whose columns are not yet in doubles

    // How many numbers of the type computed in a thread needs.
    static i64 scratch(const Outline<C>& rule, const Job& job) {
        return (2 * rule.values + 2) * room_of(job) + rule.column_reductions * column_room(job);
    }

    static i64 room_of(const Job& job) {
        const i64 span = job.local && !job.by_rows ? job.unit * job.size() : job.span();
        return rounded_up(most(SPAN, span) + PADDING, 64);
    }

    static i64 column_room(const Job& job) {
        return job.by_rows && !job.local ? rounded_up(least(job.columns, CHUNK), 64) : 0;
    }

    APART Part(
        const Outline<C>& given_rule, const Subject<C>& given_tensor, const Pass& given_pass,
        const Reach& reach, bool first, C* scratch)
        : rule(given_rule), tensor(given_tensor), job(tensor.job), pass(given_pass),
          unscales(first && tensor.table.grad_scale), memory(scratch), room(room_of(job)),
          touched(reach.touched | u64(unscales) << 1), written(reach.written), loops(reach.loops) {
        for (int n = 0; first && n < rule.numbers; ++n) tensor.partials[n] = 0;
    }

    C* buffer(int v) const { return memory + v * room; }
    C* wide_buffer(int v) const { return memory + (rule.values + v) * room; }
    double* doubles() const { return reinterpret_cast<double*>(memory + 2 * rule.values * room); }

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
        begin_sums(matrix, first, last);
        const i64 span = job.span();
        const i64 unit = most(1, least(job.by_rows ? RUN : span, span / job.columns));
        for (i64 r = first; r < last; r += unit) {
            const i64 rows = least(unit, last - r), row = matrix * job.rows + r;
            for (i64 c = left; c < right; c += span) {
                const i64 columns = least(span, right - c);
                tile({matrix, row, matrix * job.columns + c, row * job.columns + c, 1, rows,
                      columns, rows * columns});
            }
            if ((rows_summed += rows) + unit > RUN) end_run(matrix);
        }
        end_run(matrix);
    }

    double* row_sums(int n) const {
        return tensor.row_sums + (n * job.chunks + chunk) * job.batch * job.rows;
    }
    double* column_sums(int n) const {
        return tensor.column_sums + (n * job.bands + band) * job.batch * job.columns;
    }
    // The sums of the chunk's columns over a run of rows.
    C* run_sums(int n) const {
        return memory + (2 * rule.values + 2) * room + n * column_room(job);
    }

    void begin_sums(i64 matrix, i64 first, i64 last) const {
        for (int k = 0; k < rule.step_count; ++k) {
            if (!(pass.steps >> k & 1) || rule.steps[k].kind == Step::LOOP) continue;
            const int n = rule.steps[k].number;
            if (rule.steps[k].axes == ROW)
                for (i64 r = first; r < last; ++r) row_sums(n)[matrix * job.rows + r] = 0;
            if (rule.steps[k].axes != COLUMN) continue;
            for (i64 c = left; c < right; ++c) column_sums(n)[matrix * job.columns + c] = 0;
            for (i64 c = 0; job.by_rows && c < right - left; ++c) run_sums(n)[c] = 0;
        }
    }

    void end_run(i64 matrix) {
        rows_summed = 0;
        for (int k = 0; k < rule.step_count; ++k) {
            const Step& step = rule.steps[k];
            if (!(pass.steps >> k & 1) || !is_summed_in_loop(step) || step.axes != COLUMN) continue;
            double* __restrict to = column_sums(step.number) + matrix * job.columns + left;
            C* __restrict run = run_sums(step.number);
            for (i64 c = 0; c < right - left; ++c) {
                to[c] += double(run[c]);
                run[c] = 0;
            }
        }
    }

    // Whether a loop over elements adds a sum up itself.
    bool is_summed_in_loop(const Step& step) const {
        if (step.kind != Step::SUM) return false;
        return !step.reads || (job.by_rows && rule.axes[__builtin_ctzll(step.reads)] == TENSOR);
    }

    APART void tile(const Tile& tile) {
        C* at[MOST_VALUES];
        for (int v = 0; v < rule.values; ++v) at[v] = touched >> v & 1 ? open(v, tile) : nullptr;
        if (unscales) unscale(tile, at[1]);
        if constexpr (HAS_AXES)
            if (job.by_rows) open_sums(tile, at);
        for (int k = 0, loop_count = 0; k < rule.step_count; ++k) {
            if (!(pass.steps >> k & 1)) continue;
            const Step& step = rule.steps[k];
            if (step.kind == Step::LOOP) {
                if (loops > 1) fetch(tile, loop_count++);
                loop(k, step, tile, at);
            } else if (is_summed_in_loop(step)) {
                if constexpr (HAS_AXES)
                    if (!job.local && step.axes == ROW) add_rows(step, tile, at);
            } else if (step.kind == Step::SUM) reduce<Sum>(step, tile, at);
            else if constexpr (HAS_LARGEST) reduce<Largest>(step, tile, at);
        }
        for (int v = 0; v < rule.streams; ++v)
            if ((pass.stores & written) >> v & 1 && at[v] == buffer(v))
                write<KNOWN>(tensor.type(v), at[v], tensor.address(v), tile.first(rule.axes[v]),
                      tile.count(rule.axes[v]));
    }

    // Where a value of a tile is read and written: in the tensor itself if that can be.
    C* open(int v, const Tile& tile) const {
        const int axes = rule.axes[v];
        if (!job.local && axes != TENSOR) return tensor.whole[v] + tile.first(axes);
        if (v >= rule.streams) return buffer(v);
        const u32 type = tensor.type(v);
        if (type == ABSENT) return nullptr;
        const bool kept = !(written >> v & 1) || pass.stores >> v & 1;
        if (type == TYPE<C> && kept)
            return static_cast<C*>(tensor.address(v)) + tile.first(axes);
        read<KNOWN>(type, tensor.address(v), tile.first(axes), tile.count(axes), buffer(v));
        return buffer(v);
    }

    // Where loops that go row by row add rows and columns up.
    void open_sums(const Tile& tile, C** at) const {
        for (int k = 0; k < rule.step_count; ++k) {
            const Step& step = rule.steps[k];
            if (!(pass.steps >> k & 1) || !is_summed_in_loop(step) || step.axes == NONE) continue;
            const int v = __builtin_ctzll(step.writes);
            at[v] = buffer(v);
            if (!job.local && step.axes == COLUMN)
                at[v] = run_sums(step.number) + (tile.column - tile.matrix * job.columns - left);
            else
                for (i64 i = 0; i < tile.count(step.axes); ++i) at[v][i] = 0;
        }
    }

    void add_rows(const Step& step, const Tile& tile, C* const* at) const {
        double* const to = row_sums(step.number) + tile.row;
        const C* const sums = at[__builtin_ctzll(step.writes)];
        for (i64 r = 0; r < tile.rows; ++r) to[r] += double(sums[r]);
    }

    // Gradients are unscaled in place, as torch's fused kernels do.
    void unscale(const Tile& tile, C* grads) const {
        const C scale = C(*tensor.table.grad_scale);
        for (i64 i = 0; i < tile.elements; ++i) grads[i] /= scale;
        if (grads == buffer(1))
            write<KNOWN>(tensor.type(1), grads, tensor.address(1), tile.element, tile.elements);
    }

    // Asks for a share of what the next tile reads: memory would rest while this one is computed
    // with.
    void fetch(const Tile& tile, int share) const {
        for (u64 streams = touched & ((1 << rule.streams) - 1); streams; streams &= streams - 1) {
            const int v = __builtin_ctzll(streams), axes = rule.axes[v];
            if (!job.local && axes != TENSOR) continue;
            const i64 size = bytes_of(tensor.type(v)), n = tile.count(axes) * size;
            const char* const next =
                static_cast<const char*>(tensor.address(v)) + tile.first(axes) * size + n;
            for (i64 i = n * share / loops / 64 * 64; i < n * (share + 1) / loops; i += 64)
                __builtin_prefetch(next + i);
        }
    }

    // A value of fewer axes than the loop is one number for all of it, or for a row, or spread.
    void loop(int k, const Step& step, const Tile& tile, C* const* at) const {
        const i64 n = tile.count(step.axes);
        if constexpr (HAS_AXES) {
            if (!job.by_rows) {
                C* seen[MOST_VALUES];
                for (u64 values = step.reads | step.writes; values; values &= values - 1) {
                    const int v = __builtin_ctzll(values);
                    seen[v] = rule.axes[v] == step.axes ? at[v] : widened(v, step.axes, tile, at[v]);
                }
                return rule.run_spread(tensor.given, k, 1, n, seen);
            }
            if (step.axes == TENSOR)
                return job.distant ? strips(k, tile.rows, tile.columns, at)
                                   : rule.run(tensor.given, k, tile.rows, tile.columns, at);
        }
        rule.run(tensor.given, k, 1, n, at);
    }

    // A few elements at a time, while those that come later are on their way from memory.
    void strips(int k, i64 rows, i64 columns, C* const* at) const {
        const C* ahead[MOST_VALUES];
        int coming = 0;
        for (int v = 0; v < rule.streams; ++v)
            if (rule.steps[k].reads >> v & 1 && rule.axes[v] == TENSOR) ahead[coming++] = at[v] + AHEAD;
        C* seen[MOST_VALUES];
        for (int v = 0; v < rule.values; ++v) seen[v] = at[v];
        for (i64 row = 0; row < rows; ++row, advance(ROW, 1, seen), advance(COLUMN, -columns, seen))
            for (i64 column = 0; column < columns; column += STRIP) {
                const i64 n = least(STRIP, columns - column);
                for (int c = 0; c < coming; ++c, ahead[c - 1] += n)
                    for (i64 i = 0; i < n; i += 64 / i64(sizeof(C))) __builtin_prefetch(ahead[c] + i);
                rule.run(tensor.given, k, 1, n, seen);
                advance(TENSOR, n, seen);
                advance(COLUMN, n, seen);
            }
    }

    void advance(int axes, i64 n, C** seen) const {
        for (u64 values = touched; values; values &= values - 1) {
            const int v = __builtin_ctzll(values);
            if (rule.axes[v] == axes) seen[v] += n;
        }
    }

    C* widened(int v, int axes, const Tile& tile, C* from) const {
        const i64 rows = tile.rows / tile.matrices, columns = tile.columns / tile.matrices;
        const i64 n = tile.count(axes) / tile.count(rule.axes[v]);
        if (n == 1) return from;
        if (rule.axes[v] == COLUMN) repeat(from, tile.matrices, rows, columns, wide_buffer(v));
        else spread(from, tile.count(rule.axes[v]), n, wide_buffer(v));
        return wide_buffer(v);
    }

    template <class Join>
    void reduce(const Step& step, const Tile& tile, C** at) const {
        const int from = __builtin_ctzll(step.reads);
        if (step.axes == NONE) {
            double& sum = tensor.partials[step.number];
            sum = Join::join(sum, total<Join>(at[from], tile.count(rule.axes[from])));
        } else if constexpr (HAS_AXES) {
            if (!job.local) reduce_shared<Join>(step, tile, at[from]);
            else reduce_local<Join>(step, tile, at[from], at[__builtin_ctzll(step.writes)]);
        }
    }

    template <class Join>
    void reduce_local(const Step& step, const Tile& tile, C* x, C*& to) const {
        const i64 n = tile.count(step.axes);
        const i64 each = tile.count(rule.axes[__builtin_ctzll(step.reads)]) / n;
        if (each == 1) to = x;
        else if (step.axes == COLUMN)
            column_totals<Join>(x, tile.matrices, job.rows, job.columns, to, doubles());
        else row_totals<Join>(x, n, each, to);
    }

    template <class Join>
    void reduce_shared(const Step& step, const Tile& tile, const C* x) const {
        if (step.axes == COLUMN)
            return join_rows<Join>(
                x, tile.rows, tile.columns, column_sums(step.number) + tile.column);
        double* const to = row_sums(step.number) + tile.row;
        if (tile.columns == job.columns) return row_totals<Join>(x, tile.rows, tile.columns, to);
        *to = Join::join(*to, total<Join>(x, tile.columns));
    }
};

}  // namespace optgen
