// Lays out the memory of one tensor's passes, and runs the steps between its sweeps.
#include "optgen/runtime/fused_cpu/include/tensor_plan.h"
#include "optgen/runtime/fused_cpu/include/loads_and_stores.h"
#include "optgen/runtime/fused_cpu/include/simd.h"

namespace optgen {

// Inputs of a loop of a rule with phases besides its arrays.
template <class R>
struct LoopInputs : RuleInputs<R> {
    Sizes sizes;
    double* numbers;  // [NUMBERS], numbers of the whole tensor
    double* partials; // [NUMBERS], sums over the swept block

    // Return the numbers and the partial sums by their names in the rule.
    typename R::Numbers& named_numbers() const {
        return *reinterpret_cast<typename R::Numbers*>(numbers);
    }
    typename R::Numbers& named_partials() const {
        return *reinterpret_cast<typename R::Numbers*>(partials);
    }
};

// One tensor and its memory, which lasts for the step. C is the compute dtype.
template <class R, class C>
struct TensorPasses {
    static constexpr int STREAMS = R::STREAMS, VALUES = R::VALUES, NUMBERS = R::NUMBERS;
    static constexpr int PARTIALS = NUMBERS + R::MATRIX_REDUCTIONS;
    static_assert(R::STEP_COUNT <= 64 && VALUES <= MAX_VALUES, "too many steps or values");

    const Program<R>& program;
    const TensorPlan& plan;
    double* numbers;  // [NUMBERS]
    double* partials; // [block][PARTIALS]: of numbers, and of the reductions to the block's matrix
    // Row, column and matrix values, if a tile cannot compute them by itself. They are converted
    // from the sums below.
    C* axis_values[VALUES];
    double* row_sums = nullptr;    // [reduction][chunk][row]
    double* column_sums = nullptr; // [reduction][band][column]
    double* matrix_sums = nullptr; // [reduction][matrix]
    i64 bytes; // size of this memory

    TensorPasses(const Program<R>& given_program, const TensorPlan& given_plan)
        : program(given_program), plan(given_plan) {
        char* at = plan.memory;
        numbers = carve<double>(at, NUMBERS);
        partials = carve<double>(at, plan.block_count * PARTIALS);
        if (!plan.has_whole_matrices) {
            for (int v = 0; v < VALUES; ++v)
                axis_values[v] =
                    has_axis_buffer(v) ? carve<C>(at, plan.extent().count(R::AXES[v])) : nullptr;
            if (!plan.is_complete(ROW))
                row_sums =
                    carve<double>(at, R::ROW_REDUCTIONS * plan.chunk_count * plan.extent().rows);
            if (!plan.is_complete(COLUMN))
                column_sums = carve<double>(
                    at, R::COLUMN_REDUCTIONS * plan.band_count * plan.extent().columns);
            matrix_sums = carve<double>(at, R::MATRIX_REDUCTIONS * plan.matrices);
        }
        bytes = at - plan.memory;
    }

    bool has_axis_buffer(int v) const { return !plan.is_complete(R::AXES[v]); }

    // Takes n numbers, and padding, from the memory at `at`; advances `at` to the next cache line.
    template <class T>
    static T* carve(char*& at, i64 n) {
        T* const carved = reinterpret_cast<T*>(at);
        at += rounded_up((n + PADDING) * i64(sizeof(T)), 64);
        return carved;
    }

    const Pass* pass_list() const { return R::PASSES[plan.strategy]; }

    LoopInputs<R> inputs(i64 block) const {
        return {
            program.inputs(plan.tensor), program.sizes(plan.tensor), numbers,
            partials + block * PARTIALS};
    }

    u32 dtype(int stream) const { return program.dtype(stream, plan.tensor); }
    void* address(int stream) const { return program.address(stream, plan.tensor); }

    void begin() const {
        for (i64 i = 0; i < NUMBERS; ++i) numbers[i] = 0;
        if (!plan.block_count) zero_sums();
        if (plan.has_whole_matrices) return;
        for (int v = 0; v < STREAMS; ++v)
            if (has_axis_buffer(v) && dtype(v))
                read<COMPILED_DTYPES>(
                    dtype(v), address(v), 0, plan.extent().count(R::AXES[v]), axis_values[v]);
    }

    // Zeroes the sums of an empty tensor, which has no block that would do so. An empty matrix can
    // have rows or columns, and each of them has a sum.
    void zero_sums() const {
        for (const Step& step : R::STEPS)
            if (step.is_reduction() && !plan.is_complete(step.axes))
                for (i64 i = 0; i < count_of(step); ++i) result_of(step)[i] = 0;
    }

    // Combines the partial results that a pass's blocks left, and runs the pass's finish steps.
    NOINLINE void finish(const Pass& pass) const {
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            const Step& step = R::STEPS[k];
            if (pass.tile_steps >> k & 1 && !plan.is_complete(step.axes)) {
                combine(step);
                if constexpr (R::HAS_AXES) convert_result(step, result_of(step));
            }
            if (pass.finish_steps >> k & 1) run_step(k, step);
        }
        store_values(pass);
    }

    // Stores the row and column states of a pass, and after the last pass the scalar states.
    void store_values(const Pass& pass) const {
        if constexpr (STORES_NUMBERS<R>)
            for (const StoredNumber& stored : R::STORED_NUMBERS)
                if (&pass == pass_list() + plan.pass_count - 1)
                    write_scalar(
                        dtype(STREAMS + stored.cell_index), numbers[stored.number_index],
                        address(STREAMS + stored.cell_index));
        for (int v = 0; R::HAS_AXES && v < STREAMS; ++v)
            if (!plan.has_whole_matrices && has_axis_buffer(v) && pass.stored_values >> v & 1
                && dtype(v))
                write<COMPILED_DTYPES>(
                    dtype(v), axis_values[v], address(v), 0, plan.extent().count(R::AXES[v]));
    }

    // Returns the address of a reduction's results, in which partial results are combined.
    double* result_of(const Step& step) const {
        if (step.axes == NONE) return numbers + step.result_index;
        if (step.axes == MATRIX) return matrix_sums + step.result_index * plan.matrices;
        if (step.axes == ROW)
            return row_sums + step.result_index * plan.chunk_count * plan.extent().rows;
        return column_sums + step.result_index * plan.band_count * plan.extent().columns;
    }

    // Returns how many results a reduction has.
    i64 count_of(const Step& step) const {
        return step.axes == NONE ? 1 : plan.extent().count(step.axes);
    }

    // Combines partial results in the order of the blocks: the result has the same bits for any
    // number of threads.
    void combine(const Step& step) const {
        if (step.kind == Step::SUM) combine<Sum>(step);
        if constexpr (has_max<R>())
            if (step.kind == Step::MAX) combine<Max>(step);
    }

    template <class Op>
    void combine(const Step& step) const {
        double* __restrict const to = result_of(step);
        if (step.axes == NONE)
            for (i64 block = 0; block < plan.block_count; ++block)
                *to = Op::combine(*to, partials[block * PARTIALS + step.result_index]);
        else if constexpr (R::HAS_AXES) {
            if (step.axes == MATRIX) return combine_matrices<Op>(step, to);
            const i64 n = plan.extent().count(step.axes);
            for (i64 p = 1; p < (step.axes == ROW ? plan.chunk_count : plan.band_count); ++p)
                for (i64 i = 0; i < n; ++i) to[i] = Op::combine(to[i], to[p * n + i]);
        }
    }

    // Combines the partial results of each matrix, whose blocks are adjacent.
    template <class Op>
    void combine_matrices(const Step& step, double* to) const {
        for (i64 m = 0; m < plan.matrices; ++m) to[m] = 0;
        for (i64 block = 0; block < plan.block_count; ++block) {
            double& sum = to[block / (plan.band_count * plan.chunk_count)];
            sum = Op::combine(sum, partials[block * PARTIALS + NUMBERS + step.result_index]);
        }
    }

    // Converts combined rows, columns or matrix values to the compute dtype, which loops read.
    void convert_result(const Step& step, const double* __restrict from) const {
        if (!step.is_reduction() || step.axes == NONE) return;
        C* __restrict const to = axis_values[only_value(step.written_values)];
        for (i64 i = 0, n = plan.extent().count(step.axes); i < n; ++i) to[i] = C(from[i]);
    }

    // Runs a loop over all rows, columns or matrices, or a reduction of them.
    void run_step(int k, const Step& step) const {
        if (step.kind == Step::LOOP && step.axes == NONE) return R::run_numbers(k, inputs(0));
        if constexpr (R::HAS_AXES) run_axis_step(k, step);
    }

    void run_axis_step(int k, const Step& step) const {
        if (step.is_reduction())
            return reduce(
                step, step.written_values ? axis_values[only_value(step.written_values)] : nullptr);
        const i64 n = count_per_matrix(step.axes);
        for (i64 m = 0; m < (step.axes == MATRIX ? 1 : plan.matrices); ++m) {
            Pointer at[VALUES];
            for (int v = 0; v < VALUES; ++v)
                at[v] = {axis_values[v] + m * (R::AXES[v] == MATRIX ? 1 : n)};
            R::template run_axes<C, false>(k, inputs(0), n, at);
        }
    }

    // Returns how many numbers of these axes a matrix has; for MATRIX, how many the tensor has.
    i64 count_per_matrix(int axes) const {
        return axes == MATRIX ? plan.matrices : plan.extent().count(axes) / max(1, plan.matrices);
    }

    // Reduces rows or columns to one number of the tensor, or to one for each matrix.
    template <class To>
    void reduce(const Step& step, To* matrix_values) const {
        if (step.kind == Step::SUM) reduce<Sum>(step, matrix_values);
        if constexpr (has_max<R>())
            if (step.kind == Step::MAX) reduce<Max>(step, matrix_values);
    }

    template <class Op, class To>
    void reduce(const Step& step, To* matrix_values) const {
        const int from = only_value(step.read_values);
        const i64 n = plan.extent().count(R::AXES[from]);
        double& number = numbers[step.result_index];
        if (step.axes == NONE) number = Op::combine(number, reduce_all<Op>(axis_values[from], n));
        else
            reduce_rows<Op>(
                axis_values[from], plan.matrices, n / max(1, plan.matrices), matrix_values);
    }
};

}  // namespace optgen
