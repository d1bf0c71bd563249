// Sweeps blocks of tensors, for any rule. The macros say what the rules of a source need:
// OPTGEN_HAS_AXES: row or column values; OPTGEN_HAS_MAX: a maximum over elements.
#include "optgen/runtime/fused_cpu/include/sweep_interface.h"
#include "optgen/runtime/fused_cpu/include/tile_sweep.h"

namespace optgen {
namespace {

template <class C>
struct Sweep {
    using Block = BlockSweep<C, OPTGEN_HAS_AXES, OPTGEN_HAS_MAX>;

    static void run(
        const RuleDescriptor<C>& rule, const TensorContext<C>& tensor, const Pass& pass,
        const Footprint& footprint, bool is_first_pass, C* scratch, i64 block) {
        Block(rule, tensor, pass, footprint, is_first_pass, scratch).run(block);
    }
    static constexpr SweepFunctions<C> FUNCTIONS{Block::scratch_elements, run};
};

constexpr SweepTable table() {
    SweepTable result{};
    if constexpr (COMPILED_DTYPES >> FLOAT32 & 1) result.in_float = &Sweep<float>::FUNCTIONS;
    if constexpr (COMPILED_DTYPES >> FLOAT64 & 1) result.in_double = &Sweep<double>::FUNCTIONS;
    return result;
}

}  // namespace
}  // namespace optgen

extern "C" const optgen::SweepTable optgen_sweeps = optgen::table();
