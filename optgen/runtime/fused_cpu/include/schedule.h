// Takes all tensors of a table through the passes of their rules: one region, one barrier a pass.
#include "optgen/runtime/fused_cpu/include/sweep.h"

extern "C" {
const optgen::Sweeps* optgen_swept_by; // the runtime enters what sweeps this library's tensors
}

namespace optgen {

// Tensors of at least so many elements are shared by all threads; others go whole to one.
constexpr i64 SHARED_ELEMENTS = 1 << 18;
// What shared tensors may need at once. Where that is not enough they go in groups, in turn.
constexpr i64 MEMORY = 8 << 20;

// How the tensors of one rule, in one type, are taken through its passes.
template <class R, class C>
struct Taking {
    static Tensor<R, C> tensor(const Job& job) {
        return Tensor<R, C>(*static_cast<const Program<R>*>(job.program), job);
    }
    static i64 bytes(const Job& job) { return tensor(job).bytes; }
    static i64 scratch(const Job& job) {
        return optgen_swept_by->of(C()).scratch(outline<R, C>(job), job) * i64(sizeof(C));
    }
    static void begin(const Job& job) { tensor(job).begin(); }
    static void finish(const Job& job, int pass) {
        const Tensor<R, C> it = tensor(job);
        it.finish(it.passes()[pass]);
    }
    static void sweep(const Job& job, int pass, i64 block, char* memory) {
        const Tensor<R, C> it = tensor(job);
        C* const scratch = reinterpret_cast<C*>(memory);
        const Given<R> given = it.given(block);
        const Subject<C> tensor{
            it.program.table, job,         &given,        given.partials,
            it.whole,         it.row_sums, it.column_sums};
        const Reach& reach = REACHES<R>.of[job.way][pass];
        optgen_swept_by->of(C()).run(
            outline<R, C>(job), tensor, it.passes()[pass], reach, pass == 0, scratch, block);
    }
    static constexpr Methods METHODS{bytes, scratch, begin, sweep, finish};
};

template <class R>
bool add(const Program<R>& program, i64 t, Job& job) {
    if (program.run[t] < 0) return false;
    job = divide(program, t);
    job.program = &program;
    job.methods = in_type(job.in_double, [](auto number) {
        return &Taking<R, decltype(number)>::METHODS;
    });
    job.passes = R::PASSES[job.way];
    return true;
}

// Memory that is kept from one step to the next: as much as any step has needed.
static char* spare = nullptr;

class Workspace {
    struct Head {
        void* allocated;
        i64 bytes;
    };
    static Head& head(char* at) { return reinterpret_cast<Head*>(at)[-1]; }

public:
    char* at;

    explicit Workspace(i64 bytes) : at(__atomic_exchange_n(&spare, nullptr, __ATOMIC_ACQ_REL)) {
        if (at && head(at).bytes >= bytes) return;
        if (at) __builtin_free(head(at).allocated);
        char* const allocated = static_cast<char*>(__builtin_malloc(u64(bytes) + 128));
        if (!allocated) __builtin_trap();
        at = allocated + 128 - reinterpret_cast<u64>(allocated) % 64;
        head(at) = {allocated, bytes};
    }
    Workspace(const Workspace&) = delete;
    ~Workspace() {  // another step may have been faster
        char* const other = __atomic_exchange_n(&spare, at, __ATOMIC_ACQ_REL);
        if (other) __builtin_free(head(other).allocated);
    }
};

// All jobs of a step.
struct Work {
    Buffer<Job> jobs;
    i64 count = 0;
    i64 memory = 0, scratch = 0; // bytes: the most that a whole tensor needs, and a thread
    i64 traffic = 0;             // bytes to be moved in one sweep

    template <class... R>
    explicit Work(const Table& table, const Program<R>&... programs) : jobs(table.tensors + 1) {
        i64 moved = 0;
        for (i64 t = 0; t < table.tensors; ++t) {
            Job& job = jobs[count];
            if (count && are_alike(table, t, jobs[count - 1].tensor)) {
                job = jobs[count - 1];
                job.tensor = t;
            } else {
                if (!(add(programs, t, job) || ...)) continue;
                memory = most(memory, job.methods->bytes(job));
                scratch = most(scratch, job.methods->scratch(job));
                moved = 0;
                for (u64 types = table.types[t]; types; types >>= 4)
                    moved += table.elements[t] * bytes_of(types & 15);
            }
            traffic += moved;
            ++count;
        }
        for (i64 i = 0; i < count; ++i) jobs[i].from_memory = traffic > CACHES;
    }

    // Whether what is found out about one tensor holds for the other too.
    static bool are_alike(const Table& table, i64 t, i64 other) {
        if (table.types[t] != table.types[other] || table.elements[t] != table.elements[other])
            return false;
        const i64 *const its = table.shape + SHAPE * t, *const others = table.shape + SHAPE * other;
        for (int i = 0; i < SHAPE; ++i)
            if (its[i] != others[i]) return false;
        return !table.shards;
    }

    // A tensor from beginning to end.
    static void whole(Job& job, char* memory, char* scratch) {
        job.memory = memory;
        job.methods->begin(job);
        for (int pass = 0; pass < job.passes; ++pass) {
            for (i64 block = 0; block < job.blocks; ++block)
                job.methods->sweep(job, pass, block, scratch);
            job.methods->finish(job, pass);
        }
    }

    void serial() const {
        const Workspace workspace(memory + scratch);
        for (i64 i = 0; i < count; ++i) whole(jobs[i], workspace.at, workspace.at + memory);
    }
};

// Shared tensors whose memory is there at once: their blocks, pass by pass, go to whoever is free.
struct Group {
    i64 first, end; // of the shared jobs
    i64 blocks, bytes;
    int passes;
};

struct Region {
    const Work& work;
    const Threads& threads;
    Buffer<Job*> shared, small;
    i64 shared_count = 0, small_count = 0;
    Buffer<Group> groups;
    i64 group_count = 0;
    i64 counters = 1, bytes = 0;
    i64* next = nullptr; // the first that nobody has taken: small tensor, then block of each pass
    char* memory = nullptr;

    Region(const Work& given_work, const Threads& given_threads)
        : work(given_work), threads(given_threads), shared(work.count + 1), small(work.count + 1),
          groups(work.count + 1) {
        for (i64 i = 0; i < work.count; ++i) {
            Job& job = work.jobs[i];
            if (job.all().elements >= SHARED_ELEMENTS && job.blocks > 1) share(job);
            else small[small_count++] = &job;
        }
        for (i64 g = 0; g < group_count; ++g) counters += groups[g].passes;
    }

    void share(Job& job) {
        const i64 needed = job.methods->bytes(job);
        if (!group_count || groups[group_count - 1].bytes + needed > MEMORY)
            groups[group_count++] = {shared_count, shared_count, 0, 0, 0};
        Group& group = groups[group_count - 1];
        job.first = group.blocks;
        job.offset = group.bytes;
        job.left = job.blocks;
        group.blocks += job.blocks;
        group.bytes += needed;
        group.passes = int(most(group.passes, job.passes));
        group.end = shared_count + 1;
        shared[shared_count++] = &job;
        bytes = most(bytes, group.bytes);
    }

    i64 own() const { return work.memory + work.scratch; }

    void run() {
        const i64 counting = rounded_up(counters * i64(sizeof(i64)), 64);
        const Workspace workspace(counting + bytes + threads.count * own());
        next = reinterpret_cast<i64*>(workspace.at);
        memory = workspace.at + counting;
        for (i64 i = 0; i < counters; ++i) next[i] = 0;
        begin(0);
        threads.parallel(enter, this, unsigned(threads.count), 0);
    }

    static void enter(void* region) { static_cast<Region*>(region)->take(); }

    void take() {
        const int id = threads.id();
        char* const mine = memory + bytes + id * own();
        i64* counter = next + 1;
        for (i64 g = 0; g < group_count; ++g)
            for (int pass = 0; pass < groups[g].passes; ++pass, ++counter) {
                for (i64 b; (b = taken(counter)) < groups[g].blocks;)
                    block(groups[g], pass, b, mine + work.memory);
                if (counter == next + 1) whole(mine);
                threads.barrier();
                if (pass + 1 == groups[g].passes && g + 1 < group_count) {
                    if (id == 0) begin(g + 1);
                    threads.barrier();
                }
            }
        if (!group_count) whole(mine);
    }

    static i64 taken(i64* counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

    void whole(char* mine) {
        for (i64 i; (i = taken(next)) < small_count;)
            Work::whole(*small[i], mine, mine + work.memory);
    }

    void begin(i64 g) {
        if (g >= group_count) return;
        for (i64 i = groups[g].first; i < groups[g].end; ++i) {
            shared[i]->memory = memory + shared[i]->offset;
            shared[i]->methods->begin(*shared[i]);
        }
    }

    // Whoever does a tensor's last block puts together what all have left.
    void block(const Group& group, int pass, i64 b, char* scratch) {
        i64 i = group.first;
        while (i + 1 < group.end && shared[i + 1]->first <= b) ++i;
        Job& job = *shared[i];
        if (pass >= job.passes) return;
        job.methods->sweep(job, pass, b - job.first, scratch);
        if (__atomic_sub_fetch(&job.left, 1, __ATOMIC_ACQ_REL)) return;
        job.methods->finish(job, pass);
        job.left = job.blocks;
    }
};

#ifndef OPTGEN_SHARDS
// One step of all tensors of the table.
template <class... R>
void run(const Table& table, const Threads& threads, const Program<R>&... programs) {
    const Work work(table, programs...);
    if (threads.count > 1 && work.traffic > SERIAL) Region(work, threads).run();
    else work.serial();
}

template <class... R>
void step(const Table& table, const Threads& threads) {
    run(table, threads, Program<R>(table)...);
}
#endif

}  // namespace optgen

#ifdef OPTGEN_SHARDS  // a library of its own, built when a tensor is a part of another
#include "optgen/runtime/fused_cpu/include/walk.h"
#endif
