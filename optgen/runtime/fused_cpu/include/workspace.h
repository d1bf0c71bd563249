// Workspace memory, kept from one step to the next.
#include "optgen/runtime/fused_cpu/include/dtypes.h"

namespace optgen {

// Memory kept from the last step, or null. It is as large as the largest step so far needed.
static char* kept_memory = nullptr;

class Workspace {
    struct Head {
        void* allocated;
        i64 bytes;
    };
    static Head& head(char* at) { return reinterpret_cast<Head*>(at)[-1]; }

public:
    char* at;

    explicit Workspace(i64 bytes)
        : at(__atomic_exchange_n(&kept_memory, nullptr, __ATOMIC_ACQ_REL)) {
        if (at && head(at).bytes >= bytes) return;
        if (at) __builtin_free(head(at).allocated);
        // 128 bytes have room for the head and for alignment to a cache line.
        char* const allocated = static_cast<char*>(__builtin_malloc(u64(bytes) + 128));
        if (!allocated) __builtin_trap();
        at = allocated + 128 - reinterpret_cast<u64>(allocated) % 64;
        head(at) = {allocated, bytes};
    }
    Workspace(const Workspace&) = delete;
    ~Workspace() {  // a concurrent step may have returned its memory first
        char* const other = __atomic_exchange_n(&kept_memory, at, __ATOMIC_ACQ_REL);
        if (other) __builtin_free(head(other).allocated);
    }
};

}  // namespace optgen
