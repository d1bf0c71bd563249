// Accumulators of a sweep over one block: numbers of the tensor, of rows, columns and matrices.
#include "optgen/runtime/fused_cpu/include/sweep_interface.h"

namespace optgen {

// HAS_AXES: a rule of the source has row or column values. HAS_MAX: a rule reduces by a maximum.
template <class C, bool HAS_AXES, bool HAS_MAX>
struct Accumulators {
    const RuleDescriptor<C>& rule;
    const TensorContext<C>& tensor;
    const TensorPlan& plan;
    const Pass& pass;
    C* const memory;
    const u64 written_values; // values that the pass writes, a bit each
    const i64 buffer_size = buffer_elements(plan);
    i64 band = 0, chunk = 0;               // of the block
    i64 first_column = 0, end_column = 0;  // the block's columns are [first_column, end_column)
    i64 rows_summed = 0; // rows whose column sums are not yet added to doubles

    // Returns how many numbers of the compute dtype a thread's scratch memory must hold.
    static i64 scratch_elements(const RuleDescriptor<C>& rule, const TensorPlan& plan) {
        return (2 * rule.value_count + 2) * buffer_elements(plan)
            + rule.column_reduction_count * column_buffer_elements(plan);
    }

    static i64 buffer_elements(const TensorPlan& plan) {
        return rounded_up(plan.tile_elements + PADDING, 64);
    }

    static i64 column_buffer_elements(const TensorPlan& plan) {
        return plan.by_rows && !plan.is_complete(COLUMN)
            ? rounded_up(min(plan.columns, CHUNK_COLUMNS), 64) : 0;
    }

    C* buffer(int v) const { return memory + v * buffer_size; }
    C* broadcast_buffer(int v) const { return memory + (rule.value_count + v) * buffer_size; }
    double* double_scratch() const {
        return reinterpret_cast<double*>(memory + 2 * rule.value_count * buffer_size);
    }

    double* row_sums(int n) const {
        return tensor.row_sums + (n * plan.chunk_count + chunk) * plan.matrices * plan.rows;
    }
    double* column_sums(int n) const {
        return tensor.column_sums + (n * plan.band_count + band) * plan.matrices * plan.columns;
    }
    // Returns the address of the sums of the chunk's columns, in the compute dtype. They cover the
    // rows since the last call of `end_run`.
    C* run_sums(int n) const {
        return memory + (2 * rule.value_count + 2) * buffer_size + n * column_buffer_elements(plan);
    }

    // Zeroes the accumulators of a block: rows [first, last) of a matrix.
    void begin_sums(i64 matrix, i64 first, i64 last) const {
        for (int k = 0; k < rule.step_count; ++k) {
            if (!(pass.tile_steps >> k & 1) || !rule.steps[k].is_reduction()) continue;
            const int n = rule.steps[k].result_index;
            if (rule.steps[k].axes == MATRIX) tensor.partials[rule.number_count + n] = 0;
            if (plan.is_complete(rule.steps[k].axes)) continue;
            if (rule.steps[k].axes == ROW)
                for (i64 r = first; r < last; ++r) row_sums(n)[matrix * plan.rows + r] = 0;
            if (rule.steps[k].axes != COLUMN) continue;
            for (i64 c = first_column; c < end_column; ++c)
                column_sums(n)[matrix * plan.columns + c] = 0;
            for (i64 c = 0; plan.by_rows && c < end_column - first_column; ++c) run_sums(n)[c] = 0;
        }
    }

    // Adds the column sums of the rows since the last call to the sums in double.
    void end_run(i64 matrix) {
        rows_summed = 0;
        for (int k = 0; k < rule.step_count; ++k) {
            const Step& step = rule.steps[k];
            if (!(pass.tile_steps >> k & 1) || !is_summed_in_loop(step)) continue;
            if (step.axes != COLUMN || plan.is_complete(COLUMN)) continue;
            double* __restrict to =
                column_sums(step.result_index) + matrix * plan.columns + first_column;
            C* __restrict run = run_sums(step.result_index);
            for (i64 c = 0; c < end_column - first_column; ++c) {
                to[c] += double(run[c]);
                run[c] = 0;
            }
        }
    }

    // Tells whether a loop over elements adds up this sum itself, so that no reduction follows it.
    bool is_summed_in_loop(const Step& step) const {
        if (step.kind != Step::SUM) return false;
        return !step.read_values
            || (plan.by_rows && rule.axes[only_value(step.read_values)] == TENSOR);
    }

    // Gives loops that run row by row the addresses of their row and column sums, in `at`.
    void assign_sum_buffers(const Tile& tile, Pointer* at) const {
        for (int k = 0; k < rule.step_count; ++k) {
            const Step& step = rule.steps[k];
            if (step.axes == NONE || !is_summed_in_loop(step)) continue;
            if (!(written_values >> only_value(step.read_values) & 1)) continue;
            const int v = only_value(step.written_values);
            C* sums = buffer(v);
            if (step.axes == COLUMN && !plan.is_complete(COLUMN) && pass.tile_steps >> k & 1)
                sums = run_sums(step.result_index)
                    + (tile.column - tile.matrix * plan.columns - first_column);
            else
                for (i64 i = 0; i < tile.count(step.axes); ++i) sums[i] = 0;
            at[v] = {sums};
        }
    }

    void add_rows(const Step& step, const Tile& tile, const Pointer* at) const {
        double* const to = row_sums(step.result_index) + tile.row;
        const C* const sums = at[only_value(step.written_values)];
        for (i64 r = 0; r < tile.rows; ++r) to[r] += double(sums[r]);
    }

    template <class Op>
    void reduce(const Step& step, const Tile& tile, Pointer* at) const {
        const int from = only_value(step.read_values);
        C* const x = at[from];
        if (!x) return; // x is a state that does not exist: no step needs the result
        const bool is_per_matrix = step.axes == MATRIX && !plan.is_complete(MATRIX);
        if (step.axes == NONE || is_per_matrix) {
            double& sum =
                tensor.partials[step.result_index + (is_per_matrix ? rule.number_count : 0)];
            sum = Op::combine(sum, reduce_all<Op>(x, tile.count(rule.axes[from])));
        } else if constexpr (HAS_AXES) {
            if (!plan.is_complete(step.axes)) reduce_across_tiles<Op>(step, tile, x);
            else reduce_in_tile<Op>(step, tile, x, at[only_value(step.written_values)]);
        }
    }

    template <class Op>
    void reduce_in_tile(const Step& step, const Tile& tile, const C* x, C* to) const {
        const i64 n = tile.count(step.axes);
        const i64 per_result = tile.count(rule.axes[only_value(step.read_values)]) / n;
        if (per_result == 1)
            for (i64 i = 0; i < n; ++i) to[i] = x[i]; // a copy, as the operand may change later
        else if (step.axes == COLUMN)
            reduce_columns<Op>(
                x, tile.matrices, tile.rows / tile.matrices, tile.columns / tile.matrices, to,
                double_scratch());
        else reduce_rows<Op>(x, n, per_result, to);
    }

    template <class Op>
    void reduce_across_tiles(const Step& step, const Tile& tile, const C* x) const {
        if (step.axes == COLUMN)
            return accumulate_columns<Op>(
                x, tile.rows, tile.columns, column_sums(step.result_index) + tile.column);
        double* const to = row_sums(step.result_index) + tile.row;
        if (tile.columns == plan.columns) return reduce_rows<Op>(x, tile.rows, tile.columns, to);
        for (i64 r = 0; r < tile.rows; ++r, x += tile.columns)
            to[r] = Op::combine(to[r], reduce_all<Op>(x, tile.columns));
    }
};

}  // namespace optgen
