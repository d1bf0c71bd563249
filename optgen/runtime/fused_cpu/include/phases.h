// What every fused C++ kernel of a rule with reductions shares: how a tensor is taken through them.
#include "optgen/runtime/fused_cpu/include/jobs.h"
#include "optgen/runtime/fused_cpu/include/rowwise.h"

namespace optgen {

// What the loops of a rule are given beside their values.
template <class R>
struct Given {
    const typename R::Hypers& hypers;
    const typename R::Scalars& scalars;
    unsigned fresh;
    Sizes sizes;
    double* numbers;  // [NUMBERS], what is one number for the whole tensor
    double* partials; // [NUMBERS], sums over the block that is swept

    typename R::Numbers& named() const { return *reinterpret_cast<typename R::Numbers*>(numbers); }
    typename R::Numbers& sums() const { return *reinterpret_cast<typename R::Numbers*>(partials); }
};

// A tensor and its memory, which lasts for the step. C is the type computed in.
template <class R, class C>
struct Tensor {
    static constexpr int STREAMS = R::STREAMS, VALUES = R::VALUES, NUMBERS = R::NUMBERS;
    static constexpr int SUMS = NUMBERS + R::MATRIX_REDUCTIONS;
    static_assert(R::STEP_COUNT <= 64 && VALUES <= MOST_VALUES, "too many for one rule");

    const Program<R>& program;
    const Job& job;
    double* numbers;     // [NUMBERS]
    double* partials;    // [block][SUMS]: of numbers, and of the number of the block's matrix
    // Of axes whose values the parts of the tensor do not have as a whole: rows, columns and matrix
    // numbers, unrounded, and what they are made of.
    C* whole[VALUES];
    double* row_sums = nullptr;    // [reduction][chunk][row]
    double* column_sums = nullptr; // [reduction][band][column]
    double* matrix_sums = nullptr; // [reduction][matrix]
    i64 bytes;

    Tensor(const Program<R>& given_program, const Job& given_job)
        : program(given_program), job(given_job) {
        char* at = job.memory;
        numbers = take<double>(at, NUMBERS);
        partials = take<double>(at, job.blocks * SUMS);
        if (!job.local) {
            for (int v = 0; v < VALUES; ++v)
                whole[v] = is_whole(v) ? take<C>(at, job.all().count(R::AXES[v])) : nullptr;
            if (!job.has_whole(ROW))
                row_sums = take<double>(at, R::ROW_REDUCTIONS * job.chunks * job.all().rows);
            if (!job.has_whole(COLUMN))
                column_sums =
                    take<double>(at, R::COLUMN_REDUCTIONS * job.bands * job.all().columns);
            matrix_sums = take<double>(at, R::MATRIX_REDUCTIONS * job.batch);
        }
        bytes = at - job.memory;
    }

    bool is_whole(int v) const { return !job.has_whole(R::AXES[v]); }

    template <class T>
    static T* take(char*& at, i64 n) {
        T* const taken = reinterpret_cast<T*>(at);
        at += rounded_up((n + PADDING) * i64(sizeof(T)), 64);
        return taken;
    }

    const Pass* passes() const { return R::WAYS[job.way]; }

    Given<R> given(i64 block) const {
        const i64 t = job.tensor;
        return {
            program.hypers(t), program.scalars(t), program.table.fresh[t], program.sizes(t),
            numbers, partials + block * SUMS};
    }

    u32 type(int stream) const { return program.type(stream, job.tensor); }
    void* address(int stream) const { return program.address(stream, job.tensor); }

    void begin() const {
        for (i64 i = 0; i < NUMBERS; ++i) numbers[i] = 0;
        if (job.local) return;
        for (int v = 0; v < STREAMS; ++v)
            if (is_whole(v) && type(v))
                read<KNOWN>(type(v), address(v), 0, job.all().count(R::AXES[v]), whole[v]);
    }

    // Puts together what the blocks of a pass have left, and runs the steps that wait for it.
    APART void finish(const Pass& pass) const {
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            const Step& step = R::STEPS[k];
            if (pass.steps >> k & 1 && !job.has_whole(step.axes)) {
                join(step);
                if constexpr (R::HAS_AXES) put(step, joined(step));
            }
            if (pass.finish >> k & 1) whole_step(k, step);
        }
        store(pass);
    }

    void store(const Pass& pass) const {
        for (int v = 0; R::HAS_AXES && v < STREAMS; ++v)
            if (!job.local && is_whole(v) && pass.stores >> v & 1 && type(v))
                write<KNOWN>(type(v), whole[v], address(v), 0, job.all().count(R::AXES[v]));
    }

    // Where what the blocks have left of a reduction is joined.
    double* joined(const Step& step) const {
        if (step.axes == NONE) return numbers + step.number;
        if (step.axes == MATRIX) return matrix_sums + step.number * job.batch;
        if (step.axes == ROW) return row_sums + step.number * job.chunks * job.all().rows;
        return column_sums + step.number * job.bands * job.all().columns;
    }

    // Partial results, in the order of the blocks.
    void join(const Step& step) const {
        if (step.kind == Step::SUM) join<Sum>(step);
        if constexpr (has_largest<R>())
            if (step.kind == Step::LARGEST) join<Largest>(step);
    }

    template <class Join>
    void join(const Step& step) const {
        double* __restrict const to = joined(step);
        if (step.axes == NONE)
            for (i64 block = 0; block < job.blocks; ++block)
                *to = Join::join(*to, partials[block * SUMS + step.number]);
        else if constexpr (R::HAS_AXES) {
            if (step.axes == MATRIX) return join_matrices<Join>(step, to);
            const i64 n = job.all().count(step.axes);
            for (i64 p = 1; p < (step.axes == ROW ? job.chunks : job.bands); ++p)
                for (i64 i = 0; i < n; ++i) to[i] = Join::join(to[i], to[p * n + i]);
        }
    }

    // The blocks of a matrix lie side by side.
    template <class Join>
    void join_matrices(const Step& step, double* to) const {
        for (i64 m = 0; m < job.batch; ++m) to[m] = 0;
        for (i64 block = 0; block < job.blocks; ++block) {
            double& sum = to[block / (job.bands * job.chunks)];
            sum = Join::join(sum, partials[block * SUMS + NUMBERS + step.number]);
        }
    }

    // Rows, columns or matrices as loops read them.
    void put(const Step& step, const double* __restrict from) const {
        if (step.kind == Step::LOOP || step.axes == NONE) return;
        C* __restrict const to = whole[__builtin_ctzll(step.writes)];
        for (i64 i = 0, n = job.all().count(step.axes); i < n; ++i) to[i] = C(from[i]);
    }

    // A loop over all rows, columns or matrices, or a reduction of them.
    void whole_step(int k, const Step& step) const {
        if (step.kind == Step::LOOP && step.axes == NONE) return R::run_numbers(k, given(0));
        if constexpr (R::HAS_AXES) whole_axes(k, step);
    }

    void whole_axes(int k, const Step& step) const {
        if (step.kind != Step::LOOP)
            return reduce(step, step.writes ? whole[__builtin_ctzll(step.writes)] : nullptr);
        const i64 n = each(step.axes);
        for (i64 m = 0; m < (step.axes == MATRIX ? 1 : job.batch); ++m) {
            Place at[VALUES];
            for (int v = 0; v < VALUES; ++v)
                at[v] = {whole[v] + m * (R::AXES[v] == MATRIX ? 1 : n)};
            R::template run_axes<C, false>(k, given(0), n, at);
        }
    }

    // How many numbers of these axes a matrix has, or a tensor where it is one for a matrix.
    i64 each(int axes) const {
        return axes == MATRIX ? job.batch : job.all().count(axes) / most(1, job.batch);
    }

    // A reduction of rows or columns: to a number of the tensor, or to one for each matrix.
    template <class To>
    void reduce(const Step& step, To* matrices) const {
        if (step.kind == Step::SUM) reduce<Sum>(step, matrices);
        if constexpr (has_largest<R>())
            if (step.kind == Step::LARGEST) reduce<Largest>(step, matrices);
    }

    template <class Join, class To>
    void reduce(const Step& step, To* matrices) const {
        const int from = __builtin_ctzll(step.reads);
        const i64 n = job.all().count(R::AXES[from]);
        double& number = numbers[step.number];
        if (step.axes == NONE) number = Join::join(number, total<Join>(whole[from], n));
        else row_totals<Join>(whole[from], job.batch, n / most(1, job.batch), matrices);
    }
};

}  // namespace optgen
