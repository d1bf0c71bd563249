// Runs a tensor through its passes, as a state machine. The tensor suspends before a finish step
// that reads a reduction, until the other ranks or the other tensors have contributed.
#include "optgen/runtime/fused_cpu/include/phased_kernel.h"

namespace optgen {

struct ProgressMethods;

// State of a tensor between two calls. READY: the inputs of the next finish step are complete.
// SUSPENDED: the runtime must complete a reduction. WAITING: other tensors have no number to reduce
// yet.
struct TensorProgress {
    TensorPlan* plan;
    const ProgressMethods* methods;
    enum State { SWEEPING, READY, SUSPENDED, WAITING, FINISHED } state;
    int pass, next_finish_step;
    u64 incomplete; // reductions, a bit each, of only this rank's shard or this tensor so far
};

// Operations on a tensor of a step that suspends, for any rule.
struct ProgressMethods {
    void (*begin)(TensorProgress&);
    void (*combine)(TensorProgress&);
    void (*resume)(TensorProgress&);
    void (*visit_incomplete)(
        const TensorProgress&, void (*)(void*, i64 channel, double*, i64 count), void*);
};

// One tensor with its memory and state.
template <class R, class C>
struct SuspendingTensor : TensorPasses<R, C> {
    using TensorPasses<R, C>::plan, TensorPasses<R, C>::program;

    TensorProgress& progress;

    explicit SuspendingTensor(TensorProgress& given_progress)
        : TensorPasses<R, C>(
              *static_cast<const Program<R>*>(given_progress.plan->program), *given_progress.plan),
          progress(given_progress) {}

    const Pass& pass() const { return this->pass_list()[progress.pass]; }

    // Combines the partial results that a sweep's blocks left.
    void combine() const {
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            const Step& step = R::STEPS[k];
            if (!(pass().tile_steps >> k & 1) || !step.is_reduction()) continue;
            if (plan.is_complete(step.axes)) continue;
            TensorPasses<R, C>::combine(step);
            complete_or_wait(k);
        }
        progress.next_finish_step = 0;
        progress.state = progress.incomplete ? TensorProgress::SUSPENDED : TensorProgress::READY;
    }

    // Converts the reductions that the ranks have completed to the compute dtype. Then runs finish
    // steps, until another reduction must be completed or the next sweep begins.
    void resume() const {
        for (; progress.incomplete; progress.incomplete &= progress.incomplete - 1)
            convert(__builtin_ctzll(progress.incomplete));
        for (int& k = progress.next_finish_step; k < R::STEP_COUNT; ++k) {
            if (!(pass().finish_steps >> k & 1)) continue;
            const Step& step = R::STEPS[k];
            if (step.is_reduction() && !step.is_wide()) reduce(k);
            else if (progress.incomplete) break;
            else if (!step.is_wide()) this->run_step(k, step);
            else if (this->numbers[step.result_index + 1]) return wait_for_others(k);
        }
        if (progress.incomplete) {
            progress.state = TensorProgress::SUSPENDED;
            return;
        }
        this->store_values(pass());
        progress.state =
            ++progress.pass < plan.pass_count ? TensorProgress::SWEEPING : TensorProgress::FINISHED;
    }

    void wait_for_others(int k) const {
        progress.incomplete = u64(1) << k;
        progress.next_finish_step = k + 1;
        progress.state = TensorProgress::WAITING;
    }

    void reduce(int k) const {
        if constexpr (R::HAS_AXES) TensorPasses<R, C>::reduce(R::STEPS[k], result(k));
        complete_or_wait(k);
    }

    void complete_or_wait(int k) const {
        if (rank_group(k) >= 0) progress.incomplete |= u64(1) << k;
        else convert(k);
    }

    void convert(int k) const {
        if constexpr (R::HAS_AXES) TensorPasses<R, C>::convert_result(R::STEPS[k], result(k));
    }

    double* result(int k) const { return this->result_of(R::STEPS[k]); }

    i64 count(int k) const { return this->count_of(R::STEPS[k]); }

    // Returns the index of the group of ranks that complete a reduction: the ranks with the other
    // shards of its operand. Returns -1 if this rank has the whole operand.
    i64 rank_group(int k) const {
        const Shard* const shards = program.table.shards->by_tensor;
        if (!shards) return -1;
        const Step& step = R::STEPS[k];
        const int from = step.read_values ? R::AXES[only_value(step.read_values)] : int(TENSOR);
        return shards[plan.tensor].rank_groups[from & ~step.axes];
    }

    // Visits the reductions to complete. The reductions of a channel share one collective: they are
    // all sums or all maxima, of one group of ranks. Reductions over tensors have channels too.
    void visit_incomplete(void (*visit)(void*, i64, double*, i64), void* state) const {
        for (u64 remaining = progress.incomplete; remaining; remaining &= remaining - 1) {
            const int k = __builtin_ctzll(remaining);
            visit(state, channel(k), result(k), count(k));
        }
    }

    i64 channel(int k) const {
        const Step& step = R::STEPS[k];
        if (step.is_wide())
            return 2 * program.table.shards->rank_group_count + step.kind - Step::GROUP_SUM;
        return 2 * rank_group(k) + (step.kind == Step::MAX);
    }
};

template <class R, class C>
struct ProgressMethodsOf {
    using Tensor = SuspendingTensor<R, C>;
    static void begin(TensorProgress& progress) { Tensor(progress).begin(); }
    static void combine(TensorProgress& progress) { Tensor(progress).combine(); }
    static void resume(TensorProgress& progress) { Tensor(progress).resume(); }
    static void visit_incomplete(
        const TensorProgress& progress, void (*visit)(void*, i64, double*, i64), void* state) {
        TensorProgress copy = progress;
        Tensor(copy).visit_incomplete(visit, state);
    }
    static constexpr ProgressMethods METHODS{begin, combine, resume, visit_incomplete};
};

}  // namespace optgen
