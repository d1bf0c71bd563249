// What sweeps over blocks of tensors, for any rule. OPTGEN_HAS_AXES, OPTGEN_HAS_LARGEST: whether
// rules have rows and columns, or look for the largest of something.
#include "optgen/runtime/fused_cpu/include/sweep.h"
#include "optgen/runtime/fused_cpu/include/tiles.h"

namespace optgen {
namespace {

template <class C>
struct Sweep {
    using It = Part<C, OPTGEN_HAS_AXES, OPTGEN_HAS_LARGEST>;

    static void run(
        const Outline<C>& rule, const Subject<C>& tensor, const Pass& pass, const Reach& reach,
        bool first, C* scratch, i64 block) {
        It(rule, tensor, pass, reach, first, scratch).run(block);
    }
    static constexpr Sweeping<C> CALLS{It::scratch, run};
};

constexpr Sweeps table() {
    Sweeps found{};
    if constexpr (KNOWN >> FLOAT32 & 1) found.in_float = &Sweep<float>::CALLS;
    if constexpr (KNOWN >> FLOAT64 & 1) found.in_double = &Sweep<double>::CALLS;
    return found;
}

}  // namespace
}  // namespace optgen

extern "C" const optgen::Sweeps optgen_sweeps = optgen::table();
