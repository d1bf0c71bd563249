// Takes a step of sharded tensors, or of a rule that reduces over several tensors. The step
// suspends when reductions need other ranks or other tensors, and exports its partial results. The
// runtime completes the results and resumes the step. A step whose table has all tensors completes
// reductions over tensors itself.
#include "optgen/runtime/fused_cpu/include/wide_reduction.h"

namespace optgen {

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
        i64 i = 0;
        for (i64 end = step_plan.plan_count; i + 1 < end;) {
            const i64 middle = (i + end) / 2;
            (first_block[middle] <= block ? i : end) = middle;
        }
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
        bool on_one_thread;
    };

    void parallel_for(void (SuspendingStep::*work)(i64, char*), i64 count) {
        ParallelFor loop{
            *this, work, count, 0,
            threads.count == 1 || step_plan.traffic <= MIN_PARALLEL_BYTES};
        if (loop.on_one_thread) enter(&loop);
        else threads.parallel(enter, &loop, unsigned(threads.count), 0);
    }

    static void enter(void* pointer) {
        ParallelFor& loop = *static_cast<ParallelFor*>(pointer);
        SuspendingStep& step = loop.step;
        const i64 thread_id = loop.on_one_thread ? 0 : step.threads.id();
        char* const thread_scratch = step.scratch + thread_id * step.step_plan.scratch_bytes;
        for (i64 i; (i = __atomic_fetch_add(&loop.next, 1, __ATOMIC_RELAXED)) < loop.count;)
            (step.*loop.work)(i, thread_scratch);
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
