// Sparse gradients of rules that only add multiples of them: values need no order.
#include "optgen/runtime/fused_cpu/include/kernel.h"

namespace optgen {

// Sparse gradients, beside the table: the gradient's stream is a list of values, and
// value i belongs to row indices[i] of the parameter.
struct Rows {
    const i64* const* indices; // [tensor]
    const i64* values;         // [tensor], how many
    const i64* rows;           // [tensor], of the parameter
};

// Whether a rule only adds multiples of the gradient: it says so in ADDS.
template <class R, class = void>
constexpr bool ADDS = false;
template <class R>
constexpr bool ADDS<R, decltype(void(R::ADDS))> = R::ADDS;

// Values go to their rows one by one, in their order: nothing is sorted or added up before.
template <class R>
struct AddKernel {
    const Kernel<R>* kernel; // which advances counts as soon as it is made: null until then
    const Table& table;
    const Rows& rows;
    const Threads& threads;

    // Whether every sum has the type of what it goes to. Sums of 16 bits are rounded once.
    bool suits() const {
        for (i64 t = 0; t < table.tensors; ++t) {
            const u32 type = type_of(table.types[t], 0);
            if (type != type_of(table.types[t], 1) || bytes_of(type) < 4) return false;
        }
        return true;
    }

    // A tensor with an index that is no row of it, or -1.
    i64 wrong() const {
        for (i64 t = 0; t < table.tensors; ++t)
            for (i64 i = 0; i < rows.values[t]; ++i)
                if (u64(rows.indices[t][i]) >= u64(rows.rows[t])) return t;
        return -1;
    }

    // A row is one thread's.
    template <class C>
    void add(i64 t, i64 id, i64 team) const {
        constexpr i64 AHEAD = 8;
        const i64 n = rows.values[t], wide = table.elements[t] / n;
        const i64* const indices = rows.indices[t];
        C* const param = static_cast<C*>(kernel->address(0, t));
        C* const grads = static_cast<C*>(kernel->address(1, t));
        C* streams[R::STREAMS] = {};
        C buffer[TILE];
        const i64 piece = table.grad_scale ? TILE : wide;
        for (i64 i = 0; i < n; ++i) {
            if (i + AHEAD < n) {
                const C* const next = param + indices[i + AHEAD] * wide;
                for (i64 at = 0; at < wide && at < 256; at += 64 / i64(sizeof(C)))
                    __builtin_prefetch(next + at, 1);
            }
            if (team > 1 && indices[i] % team != id) continue;
            for (i64 at = 0; at < wide; at += piece) {
                const i64 left = wide - at < piece ? wide - at : piece;
                streams[0] = param + indices[i] * wide + at;
                streams[1] = grads + i * wide + at;
                if (table.grad_scale) streams[1] = unscaled(streams[1], left, buffer);
                update<R>(kernel->hypers(t), kernel->scalars(t), table.fresh[t], left, streams);
            }
        }
    }

    template <class C>
    C* unscaled(const C* grads, i64 n, C* to) const {
        for (i64 i = 0; i < n; ++i) to[i] = grads[i] / C(*table.grad_scale);
        return to;
    }

    void part(i64 id, i64 team) const {
        for (i64 t = 0; t < table.tensors; ++t) {
            if (!rows.values[t]) continue;
            if (kernel->in_double(t)) add<double>(t, id, team);
            else add<float>(t, id, team);
        }
    }

    static void work(void* at) {
        const AddKernel& adding = *static_cast<const AddKernel*>(at);
        adding.part(adding.threads.id(), adding.threads.team());
    }
};

template <class K>
void run_rows(K& region, const Threads& threads, i64 traffic) {
    if (threads.count > 1 && traffic > SERIAL)
        threads.parallel(K::work, &region, unsigned(threads.count), 0);
    else
        region.part(0, 1);
}

}  // namespace optgen
