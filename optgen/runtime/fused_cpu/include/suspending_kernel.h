// Takes a step of sharded tensors, or of a rule that reduces over several tensors. The step
// suspends when reductions need other ranks or other tensors, and exports its partial results. The
// runtime completes the results and resumes the step. A step whose table has all tensors completes
// reductions over tensors itself.
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

// Moves the number at `root` down a heap until no number below it is larger.
inline void sift_down(double* heap, i64 root, i64 count) {
    for (i64 child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && heap[child] < heap[child + 1]) ++child;
        if (!(heap[root] < heap[child])) return;
        const double larger = heap[child];
        heap[child] = heap[root], heap[root] = larger;
    }
}

// Sorts numbers in ascending order; none may be NaN.
inline void heapsort(double* numbers, i64 count) {
    for (i64 root = count / 2; root--;) sift_down(numbers, root, count);
    for (i64 last = count; --last > 0;) {
        const double largest = numbers[0];
        numbers[0] = numbers[last], numbers[last] = largest;
        sift_down(numbers, 0, last);
    }
}

// Sorts numbers, and returns their sum or the largest number; NaN if one is NaN. The sorted numbers
// are added one after another, as in wide_reductions.py.
inline double reduce_numbers(double* numbers, i64 count, bool is_maximum) {
    for (i64 i = 0; i < count; ++i)
        if (numbers[i] != numbers[i]) return numbers[i];
    heapsort(numbers, count);
    if (is_maximum) return numbers[count - 1];
    double sum = 0;
    for (i64 i = 0; i < count; ++i) sum += numbers[i];
    return sum;
}

// A step of all tensors, and its state.
struct SuspendingStep {
    const Table& table;
    Shards& shards;
    const Threads threads;
    StepPlan step_plan;
    HeapArray<TensorProgress> progress;
    HeapArray<i64> first_block; // [tensor]: its first block among all blocks of a sweep
    HeapArray<char> memory;
    HeapArray<double> numbers;
    i64 number_capacity = 1; // of `numbers`
    i64 channel_count;       // length of `Shards::counts`
    char* scratch;
    void (*end)(SuspendingStep*);

    template <class... R>
    SuspendingStep(
        const Table& given_table, const Threads& given_threads, const Program<R>&... programs)
        : table(given_table), shards(*table.shards), threads(given_threads),
          step_plan(table, programs...), progress(step_plan.plan_count + 1),
          first_block(step_plan.plan_count + 1), memory(64), numbers(1),
          channel_count(2 * shards.rank_group_count + 4) {
        i64 bytes = 0;
        for (i64 i = 0; i < step_plan.plan_count; ++i) {
            progress[i] = {&step_plan.plans[i], nullptr, TensorProgress::SWEEPING, 0, 0, 0};
            (choose_methods(programs, progress[i]), ...);
            step_plan.plans[i].memory_offset = bytes;
            bytes += step_plan.plans[i].methods->tensor_bytes(step_plan.plans[i]);
        }
        memory.grow(bytes + threads.count * step_plan.scratch_bytes + 64);
        char* const at = memory.data + 64 - reinterpret_cast<u64>(memory.data) % 64;
        scratch = at + bytes;
        for (i64 i = 0; i < step_plan.plan_count; ++i) {
            step_plan.plans[i].memory = at + step_plan.plans[i].memory_offset;
            progress[i].methods->begin(progress[i]);
        }
    }

    template <class R>
    static void choose_methods(const Program<R>& program, TensorProgress& progress) {
        if (progress.plan->program != &program) return;
        progress.methods = with_compute_type(progress.plan->in_double, [](auto number) {
            return &ProgressMethodsOf<R, decltype(number)>::METHODS;
        });
    }

    // Runs until reductions must be completed. Returns false if the step is done instead.
    bool advance() {
        import_sums();
        run_ready();
        if (!any_tensor_is(TensorProgress::SUSPENDED))
            change_states(TensorProgress::WAITING, TensorProgress::SUSPENDED);
        export_sums();
        return any_tensor_is(TensorProgress::SUSPENDED);
    }

    // Runs to the end. No tensor has shards, and the table has all tensors of the step.
    void run_alone() {
        do run_ready();
        while (complete_wide_reductions());
    }

    // Resumes and sweeps tensors until each is suspended, waiting or finished.
    void run_ready() {
        do {
            parallel_for(&SuspendingStep::resume, step_plan.plan_count);
            parallel_for(&SuspendingStep::sweep, lay_out_blocks());
        } while (any_tensor_is(TensorProgress::READY));
    }

    // A number of a waiting tensor, and its channel: see `counts` in tensor_table.h.
    struct WaitingNumber {
        i64 tensor, channel;
        double* number;
        int param_group;
        bool is_complete;

        // Without groups of ranks, the channels 0 and 1 are for reductions over a group of
        // parameters, and 2 and 3 for reductions over all.
        bool is_reduced_over_group() const { return channel < 2; }
    };

    static void note_number(void* noted, i64 channel, double* number, i64) {
        WaitingNumber& waiting_number = *static_cast<WaitingNumber*>(noted);
        waiting_number.channel = channel, waiting_number.number = number;
    }

    // Completes reductions over tensors, for which tensors wait: all reductions over a group, or if
    // no tensor waits for one, the reductions over all tensors. Returns false if no tensor waits.
    bool complete_wide_reductions() {
        HeapArray<WaitingNumber> waiting(step_plan.plan_count + 1);
        i64 count = 0;
        bool over_groups = false;
        for (i64 i = 0; i < step_plan.plan_count; ++i) {
            if (progress[i].state != TensorProgress::WAITING) continue;
            const int param_group = table.group[step_plan.plans[i].tensor];
            waiting[count] = {i, 0, nullptr, param_group, /*is_complete=*/false};
            progress[i].methods->visit_incomplete(progress[i], note_number, &waiting[count]);
            over_groups |= waiting[count++].is_reduced_over_group();
        }
        HeapArray<double> values(count + 1);
        for (i64 i = 0; i < count; ++i)
            if (!waiting[i].is_complete && waiting[i].is_reduced_over_group() == over_groups)
                complete_number(waiting, i, count, over_groups, values.data);
        return count > 0;
    }

    // Reduces waiting[first] and all later numbers of the same reduction.
    void complete_number(
        const HeapArray<WaitingNumber>& waiting, i64 first, i64 count, bool over_groups,
        double* values) {
        const i64 channel = waiting[first].channel;
        const int param_group = waiting[first].param_group;
        const auto belongs = [&](const WaitingNumber& other) {
            return other.channel == channel && (!over_groups || other.param_group == param_group);
        };
        i64 value_count = 0;
        for (i64 i = first; i < count; ++i)
            if (belongs(waiting[i])) values[value_count++] = *waiting[i].number;
        const bool is_maximum = channel % 2;
        const double result = reduce_numbers(values, value_count, is_maximum);
        for (i64 i = first; i < count; ++i) {
            if (!belongs(waiting[i])) continue;
            *waiting[i].number = result;
            waiting[i].is_complete = true;
            progress[waiting[i].tensor].state = TensorProgress::READY;
        }
    }

    bool any_tensor_is(TensorProgress::State state) const {
        for (i64 i = 0; i < step_plan.plan_count; ++i)
            if (progress[i].state == state) return true;
        return false;
    }

    void change_states(TensorProgress::State from, TensorProgress::State to) {
        for (i64 i = 0; i < step_plan.plan_count; ++i)
            if (progress[i].state == from) progress[i].state = to;
    }

    void resume(i64 i, char*) {
        if (progress[i].state == TensorProgress::READY) progress[i].methods->resume(progress[i]);
    }

    // Lists the blocks that are swept next: fills `first_block`. Returns how many blocks there are.
    i64 lay_out_blocks() {
        i64 count = 0;
        for (i64 i = 0; i < step_plan.plan_count; ++i) {
            first_block[i] = count;
            if (progress[i].state != TensorProgress::SWEEPING) continue;
            TensorPlan& plan = *progress[i].plan;
            plan.blocks_left = plan.block_count;
            count += plan.block_count;
            if (!plan.block_count) progress[i].methods->combine(progress[i]);
        }
        first_block[step_plan.plan_count] = count;
        return count;
    }

    // Sweeps a block. The thread that finishes a tensor's last block combines partial results.
    void sweep(i64 block, char* thread_scratch) {
        const i64 i = range_of(block, first_block, step_plan.plan_count);
        TensorProgress& tensor = progress[i];
        TensorPlan& plan = *tensor.plan;
        plan.methods->sweep(plan, tensor.pass, block - first_block[i], thread_scratch);
        if (!__atomic_sub_fetch(&plan.blocks_left, 1, __ATOMIC_ACQ_REL))
            tensor.methods->combine(tensor);
    }

    // A loop whose iterations threads claim one by one.
    struct ParallelFor {
        SuspendingStep& step;
        void (SuspendingStep::*work)(i64, char*);
        i64 count, next;

        void run_thread(i64 id, i64) {
            char* const thread_scratch = step.scratch + id * step.step_plan.scratch_bytes;
            for (i64 i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < count;)
                (step.*work)(i, thread_scratch);
        }
    };

    void parallel_for(void (SuspendingStep::*work)(i64, char*), i64 count) {
        ParallelFor loop{*this, work, count, 0};
        run_on_threads(loop, threads, step_plan.traffic);
    }

    // Copies incomplete sums to or from one array, grouped by channel. One collective completes a
    // channel. Each group of ranks has two channels, one for sums and one for maxima; the last
    // four are for the reductions over tensors.
    struct SumCopy {
        double** next_sums; // [channel]: address of the next sums; null while sums are counted
        i64* counts;
        bool imports; // copies from the array to the tensors, else from the tensors to the array
    };

    static void copy(void* sum_copy, i64 channel, double* numbers, i64 count) {
        const SumCopy& sums = *static_cast<SumCopy*>(sum_copy);
        if (!sums.next_sums) {
            sums.counts[channel] += count;
            return;
        }
        double*& at = sums.next_sums[channel];
        __builtin_memcpy(sums.imports ? numbers : at, sums.imports ? at : numbers, u64(count) * 8);
        at += count;
    }

    void visit_incomplete(SumCopy sums) {
        for (i64 i = 0; i < step_plan.plan_count; ++i)
            if (progress[i].state == TensorProgress::SUSPENDED)
                progress[i].methods->visit_incomplete(progress[i], copy, &sums);
    }

    void copy_all(bool imports) {
        HeapArray<double*> next_sums(channel_count + 1);
        next_sums[0] = numbers.data;
        for (i64 c = 0; c < channel_count; ++c) next_sums[c + 1] = next_sums[c] + shards.counts[c];
        visit_incomplete({next_sums.data, nullptr, imports});
    }

    void export_sums() {
        i64 count = 0;
        for (i64 c = 0; c < channel_count; ++c) shards.counts[c] = 0;
        visit_incomplete({/*next_sums=*/nullptr, shards.counts, /*imports=*/false});
        for (i64 c = 0; c < channel_count; ++c) count += shards.counts[c];
        if (count > number_capacity) numbers.grow(number_capacity = count);
        shards.numbers = numbers.data;
        copy_all(/*imports=*/false);
    }

    void import_sums() {
        copy_all(/*imports=*/true);
        change_states(TensorProgress::SUSPENDED, TensorProgress::READY);
    }
};

template <class... R>
struct SuspendingStepOf : Program<R>..., SuspendingStep {
    SuspendingStepOf(const Table& table, const Threads& threads)
        : Program<R>(table)...,
          SuspendingStep(table, threads, static_cast<const Program<R>&>(*this)...) {
        this->end = [](SuspendingStep* step) { delete static_cast<SuspendingStepOf*>(step); };
    }
};

// Begins a step of all tensors of the table. Without shards, also runs the step to its end.
template <class... R>
void step(const Table& table, const Threads& threads) {
    SuspendingStep* const new_step = new SuspendingStepOf<R...>(table, threads);
    if (table.shards->by_tensor) {
        table.shards->step = new_step;
        return;
    }
    new_step->run_alone();
    new_step->end(new_step);
}

}  // namespace optgen

extern "C" int optgen_advance(optgen::SuspendingStep* step) { return step->advance(); }
extern "C" void optgen_end(optgen::SuspendingStep* step) { step->end(step); }
