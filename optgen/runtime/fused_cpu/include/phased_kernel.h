// Entry header of fused C++ kernels for rules with phases: runs all tensors of a table through the
// passes of their rules. Begin with the overview in elementwise_kernel.h.
#include "optgen/runtime/fused_cpu/include/random_numbers.h"
#include "optgen/runtime/fused_cpu/include/parallel_step.h"

namespace optgen {

#ifndef OPTGEN_SUSPENDS
// Takes one step of all tensors of the table.
template <class... R>
void run(const Table& table, const Threads& threads, const Program<R>&... programs) {
    const StepPlan step_plan(table, programs...);
    if (threads.count > 1 && step_plan.traffic > MIN_PARALLEL_BYTES)
        ParallelStep(step_plan, threads).run();
    else step_plan.run_serial();
}

template <class... R>
void step(const Table& table, const Threads& threads) {
    run(table, threads, Program<R>(table)...);
}
#endif

}  // namespace optgen

#ifdef OPTGEN_SUSPENDS  // a separate library, for tensors that wait for ranks or for one another
#include "optgen/runtime/fused_cpu/include/suspending_kernel.h"
#endif
