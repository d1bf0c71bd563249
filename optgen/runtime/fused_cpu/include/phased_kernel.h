// Entry header of fused C++ kernels for rules with phases: runs all tensors of a table through the
// passes of their rules. Begin with the overview in elementwise_kernel.h. A step is one parallel
// region, with a barrier after each pass over a batch of shared tensors.
#include "optgen/runtime/fused_cpu/include/sweep_interface.h"
#include "optgen/runtime/fused_cpu/include/workspace.h"

extern "C" {
const optgen::SweepTable* optgen_sweep_library; // the runtime enters the sweep library's table
}

namespace optgen {

// Tensors with at least this many elements are shared by all threads. Others go to one thread each.
constexpr i64 MIN_SHARED_ELEMENTS = 1 << 18;
// Memory limit of shared tensors that are swept together. If all need more, batches take turns.
constexpr i64 BATCH_BYTES = 8 << 20;

// Operations on tensors of one rule, in one compute dtype.
template <class R, class C>
struct TensorMethodsOf {
    static TensorPasses<R, C> tensor(const TensorPlan& plan) {
        return TensorPasses<R, C>(*static_cast<const Program<R>*>(plan.program), plan);
    }
    static i64 bytes(const TensorPlan& plan) { return tensor(plan).bytes; }
    static i64 scratch(const TensorPlan& plan) {
        return optgen_sweep_library->of(C()).scratch(descriptor<R, C>(plan), plan) * i64(sizeof(C));
    }
    static void begin(const TensorPlan& plan) { tensor(plan).begin(); }
    static void finish(const TensorPlan& plan, int pass) {
        const TensorPasses<R, C> passes = tensor(plan);
        passes.finish(passes.table()[pass]);
    }
    static void sweep(const TensorPlan& plan, int pass, i64 block, char* memory) {
        const TensorPasses<R, C> passes = tensor(plan);
        C* const scratch = reinterpret_cast<C*>(memory);
        const LoopInputs<R> inputs = passes.inputs(block);
        const TensorContext<C> tensor{
            passes.program.table, plan, &inputs, inputs.partials,
            passes.axis_values, passes.row_sums, passes.column_sums};
        const Footprint& footprint = FOOTPRINTS<R>.of[plan.strategy][pass];
        optgen_sweep_library->of(C()).run(
            descriptor<R, C>(plan), tensor, passes.table()[pass], footprint, pass == 0, scratch,
            block);
    }
    static constexpr TensorMethods METHODS{bytes, scratch, begin, sweep, finish};
};

template <class R>
bool plan_tensor(const Program<R>& program, i64 t, TensorPlan& plan) {
    if (program.scalar_run[t] < 0) return false;
    plan = make_plan(program, t);
    plan.program = &program;
    plan.methods = with_compute_type(plan.in_double, [](auto number) {
        return &TensorMethodsOf<R, decltype(number)>::METHODS;
    });
    plan.passes = R::PASS_COUNTS[plan.strategy];
    return true;
}

// Plans of all tensors of a step.
struct StepPlan {
    HeapArray<TensorPlan> plans;
    i64 count = 0;
    i64 memory = 0, scratch = 0; // bytes: maxima over tensors, for a whole tensor and for a thread
    i64 traffic = 0;             // bytes that one sweep over all tensors moves

    template <class... R>
    explicit StepPlan(const Table& table, const Program<R>&... programs)
        : plans(table.tensors + 1) {
        i64 moved = 0;
        for (i64 t = 0; t < table.tensors; ++t) {
            TensorPlan& plan = plans[count];
            if (count && are_alike(table, t, plans[count - 1].tensor)) {
                plan = plans[count - 1];
                plan.tensor = t;
            } else {
                if (!(plan_tensor(programs, t, plan) || ...)) continue;
                memory = max(memory, plan.methods->bytes(plan));
                scratch = max(scratch, plan.methods->scratch(plan));
                moved = 0;
                for (u64 dtypes = table.dtypes[t]; dtypes; dtypes >>= 4)
                    moved += table.elements[t] * itemsize(dtypes & 15);
            }
            traffic += moved;
            ++count;
        }
        for (i64 i = 0; i < count; ++i) plans[i].step_exceeds_cache = traffic > CACHE_BYTES;
    }

    // Tells whether one tensor's plan holds for the other too.
    static bool are_alike(const Table& table, i64 t, i64 other) {
        if (table.dtypes[t] != table.dtypes[other] || table.elements[t] != table.elements[other])
            return false;
        const i64 *const its = table.shape + SHAPE * t, *const others = table.shape + SHAPE * other;
        for (int i = 0; i < SHAPE; ++i)
            if (its[i] != others[i]) return false;
        return !table.shards;
    }

    // Runs all passes of one tensor on one thread.
    static void run_whole(TensorPlan& plan, char* memory, char* scratch) {
        plan.memory = memory;
        plan.methods->begin(plan);
        for (int pass = 0; pass < plan.passes; ++pass) {
            for (i64 block = 0; block < plan.blocks; ++block)
                plan.methods->sweep(plan, pass, block, scratch);
            plan.methods->finish(plan, pass);
        }
    }

    void serial() const {
        const Workspace workspace(memory + scratch);
        for (i64 i = 0; i < count; ++i) run_whole(plans[i], workspace.at, workspace.at + memory);
    }
};

// Shared tensors whose memory exists at the same time. Threads claim their blocks, pass by pass.
struct SharedBatch {
    i64 first, end; // indices of shared tensors
    i64 blocks, bytes;
    int passes;
};

struct ParallelStep {
    const StepPlan& step_plan;
    const Threads& threads;
    HeapArray<TensorPlan*> shared, unshared;
    i64 shared_count = 0, unshared_count = 0;
    HeapArray<SharedBatch> batches;
    i64 batch_count = 0;
    i64 counters = 1, bytes = 0;
    i64* next = nullptr; // next to be claimed: tensor that is not shared, then block of each pass
    char* memory = nullptr;

    ParallelStep(const StepPlan& given_plan, const Threads& given_threads)
        : step_plan(given_plan), threads(given_threads), shared(step_plan.count + 1),
          unshared(step_plan.count + 1),
          batches(step_plan.count + 1) {
        for (i64 i = 0; i < step_plan.count; ++i) {
            TensorPlan& plan = step_plan.plans[i];
            if (plan.extent().elements >= MIN_SHARED_ELEMENTS && plan.blocks > 1) add_shared(plan);
            else unshared[unshared_count++] = &plan;
        }
        for (i64 g = 0; g < batch_count; ++g) counters += batches[g].passes;
    }

    void add_shared(TensorPlan& plan) {
        const i64 needed = plan.methods->bytes(plan);
        if (!batch_count || batches[batch_count - 1].bytes + needed > BATCH_BYTES)
            batches[batch_count++] = {shared_count, shared_count, 0, 0, 0};
        SharedBatch& batch = batches[batch_count - 1];
        plan.first_block = batch.blocks;
        plan.memory_offset = batch.bytes;
        plan.blocks_left = plan.blocks;
        batch.blocks += plan.blocks;
        batch.bytes += needed;
        batch.passes = int(max(batch.passes, plan.passes));
        batch.end = shared_count + 1;
        shared[shared_count++] = &plan;
        bytes = max(bytes, batch.bytes);
    }

    i64 thread_bytes() const { return step_plan.memory + step_plan.scratch; }

    void run() {
        const i64 counter_bytes = rounded_up(counters * i64(sizeof(i64)), 64);
        const Workspace workspace(counter_bytes + bytes + threads.count * thread_bytes());
        next = reinterpret_cast<i64*>(workspace.at);
        memory = workspace.at + counter_bytes;
        for (i64 i = 0; i < counters; ++i) next[i] = 0;
        begin_batch(0);
        threads.parallel(enter, this, unsigned(threads.count), 0);
    }

    static void enter(void* region) { static_cast<ParallelStep*>(region)->run_thread(); }

    void run_thread() {
        const int id = threads.id();
        char* const thread_memory = memory + bytes + id * thread_bytes();
        i64* counter = next + 1;
        for (i64 g = 0; g < batch_count; ++g)
            for (int pass = 0; pass < batches[g].passes; ++pass, ++counter) {
                for (i64 b; (b = claim(counter)) < batches[g].blocks;)
                    sweep_block(batches[g], pass, b, thread_memory + step_plan.memory);
                if (counter == next + 1) run_unshared(thread_memory);
                threads.barrier();
                if (pass + 1 == batches[g].passes && g + 1 < batch_count) {
                    if (id == 0) begin_batch(g + 1);
                    threads.barrier();
                }
            }
        if (!batch_count) run_unshared(thread_memory);
    }

    static i64 claim(i64* counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

    void run_unshared(char* thread_memory) {
        for (i64 i; (i = claim(next)) < unshared_count;)
            StepPlan::run_whole(*unshared[i], thread_memory, thread_memory + step_plan.memory);
    }

    void begin_batch(i64 g) {
        if (g >= batch_count) return;
        for (i64 i = batches[g].first; i < batches[g].end; ++i) {
            shared[i]->memory = memory + shared[i]->memory_offset;
            shared[i]->methods->begin(*shared[i]);
        }
    }

    // Sweeps a block. The thread that finishes a tensor's last block finishes the pass.
    void sweep_block(const SharedBatch& batch, int pass, i64 b, char* scratch) {
        i64 i = batch.first;
        while (i + 1 < batch.end && shared[i + 1]->first_block <= b) ++i;
        TensorPlan& plan = *shared[i];
        if (pass >= plan.passes) return;
        plan.methods->sweep(plan, pass, b - plan.first_block, scratch);
        if (__atomic_sub_fetch(&plan.blocks_left, 1, __ATOMIC_ACQ_REL)) return;
        plan.methods->finish(plan, pass);
        plan.blocks_left = plan.blocks;
    }
};

#ifndef OPTGEN_SHARDS
// Takes one step of all tensors of the table.
template <class... R>
void run(const Table& table, const Threads& threads, const Program<R>&... programs) {
    const StepPlan step_plan(table, programs...);
    if (threads.count > 1 && step_plan.traffic > MIN_PARALLEL_BYTES)
        ParallelStep(step_plan, threads).run();
    else step_plan.serial();
}

template <class... R>
void step(const Table& table, const Threads& threads) {
    run(table, threads, Program<R>(table)...);
}
#endif

}  // namespace optgen

#ifdef OPTGEN_SHARDS  // a separate library, built when a tensor is sharded
#include "optgen/runtime/fused_cpu/include/sharded_kernel.h"
#endif
