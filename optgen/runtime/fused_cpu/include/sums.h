// What a sweep over a block of a tensor adds up: in numbers, rows and columns.
#include "optgen/runtime/fused_cpu/include/outline.h"

namespace optgen {

// HAS_AXES, HAS_LARGEST: whether any rule of the source has rows and columns, or looks for the
// largest of something.
template <class C, bool HAS_AXES, bool HAS_LARGEST>
struct Sums {
    const Outline<C>& rule;
    const Subject<C>& tensor;
    const Job& job;
    const Pass& pass;
    C* const memory;
    const u64 written;
    const i64 room = room_of(job);
    i64 band = 0, chunk = 0, left = 0, right = 0;
    i64 rows_summed = 0; // whose columns are not yet in doubles

    // How many numbers of the type computed in a thread needs.
    static i64 scratch(const Outline<C>& rule, const Job& job) {
        return (2 * rule.values + 2) * room_of(job) + rule.column_reductions * column_room(job);
    }

    static i64 room_of(const Job& job) { return rounded_up(job.span + PADDING, 64); }

    static i64 column_room(const Job& job) {
        return job.by_rows && !job.has_whole(COLUMN) ? rounded_up(least(job.columns, CHUNK), 64) : 0;
    }

    C* buffer(int v) const { return memory + v * room; }
    C* wide_buffer(int v) const { return memory + (rule.values + v) * room; }
    double* doubles() const { return reinterpret_cast<double*>(memory + 2 * rule.values * room); }

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
            if (rule.steps[k].axes == MATRIX) tensor.partials[rule.numbers + n] = 0;
            if (job.has_whole(rule.steps[k].axes)) continue;
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
            if (job.has_whole(COLUMN)) continue;
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

    // Where loops that go row by row add rows and columns up.
    void open_sums(const Tile& tile, Place* at) const {
        for (int k = 0; k < rule.step_count; ++k) {
            const Step& step = rule.steps[k];
            if (step.axes == NONE || !is_summed_in_loop(step)) continue;
            if (!(written >> __builtin_ctzll(step.reads) & 1)) continue;
            const int v = __builtin_ctzll(step.writes);
            C* sums = buffer(v);
            if (step.axes == COLUMN && !job.has_whole(COLUMN) && pass.steps >> k & 1)
                sums = run_sums(step.number) + (tile.column - tile.matrix * job.columns - left);
            else
                for (i64 i = 0; i < tile.count(step.axes); ++i) sums[i] = 0;
            at[v] = {sums};
        }
    }

    void add_rows(const Step& step, const Tile& tile, const Place* at) const {
        double* const to = row_sums(step.number) + tile.row;
        const C* const sums = at[__builtin_ctzll(step.writes)];
        for (i64 r = 0; r < tile.rows; ++r) to[r] += double(sums[r]);
    }

    template <class Join>
    void reduce(const Step& step, const Tile& tile, Place* at) const {
        const int from = __builtin_ctzll(step.reads);
        C* const x = at[from];
        const bool of_matrix = step.axes == MATRIX && !job.has_whole(MATRIX);
        if (step.axes == NONE || of_matrix) {
            double& sum = tensor.partials[step.number + (of_matrix ? rule.numbers : 0)];
            sum = Join::join(sum, total<Join>(x, tile.count(rule.axes[from])));
        } else if constexpr (HAS_AXES) {
            if (!job.has_whole(step.axes)) reduce_shared<Join>(step, tile, x);
            else reduce_local<Join>(step, tile, x, at[__builtin_ctzll(step.writes)]);
        }
    }

    template <class Join>
    void reduce_local(const Step& step, const Tile& tile, const C* x, C* to) const {
        const i64 n = tile.count(step.axes);
        const i64 each = tile.count(rule.axes[__builtin_ctzll(step.reads)]) / n;
        if (each == 1)
            for (i64 i = 0; i < n; ++i) to[i] = x[i]; // what was summed may be written later
        else if (step.axes == COLUMN)
            column_totals<Join>(
                x, tile.matrices, tile.rows / tile.matrices, tile.columns / tile.matrices, to,
                doubles());
        else row_totals<Join>(x, n, each, to);
    }

    template <class Join>
    void reduce_shared(const Step& step, const Tile& tile, const C* x) const {
        if (step.axes == COLUMN)
            return join_rows<Join>(
                x, tile.rows, tile.columns, column_sums(step.number) + tile.column);
        double* const to = row_sums(step.number) + tile.row;
        if (tile.columns == job.columns) return row_totals<Join>(x, tile.rows, tile.columns, to);
        for (i64 r = 0; r < tile.rows; ++r, x += tile.columns)
            to[r] = Join::join(to[r], total<Join>(x, tile.columns));
    }
};

}  // namespace optgen
