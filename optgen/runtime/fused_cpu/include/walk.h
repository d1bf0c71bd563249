// A step over tensors of which this process holds parts. It goes on until sums over all parts are
// needed, leaves its own where the runtime has them completed, and goes on with what that gave.
#include "optgen/runtime/fused_cpu/include/courses.h"

namespace optgen {

// A step over the parts of all tensors, and where it stands.
struct Walk {
    Shards& shards;
    const Threads threads;
    Work work;
    Buffer<Course> courses;
    Buffer<i64> first; // of each course, among the blocks that are swept: where its own begin
    Buffer<char> memory;
    Buffer<double> numbers;
    i64 room = 1;
    char* scratch;
    void (*end)(Walk*);

    template <class... R>
    Walk(const Table& table, const Threads& given, const Program<R>&... programs)
        : shards(*table.shards), threads(given), work(table, programs...), courses(work.count + 1),
          first(work.count + 1), memory(64), numbers(1) {
        i64 bytes = 0;
        for (i64 i = 0; i < work.count; ++i) {
            courses[i] = {&work.jobs[i], nullptr, Course::SWEEPS, 0, 0, 0};
            (choose(programs, courses[i]), ...);
            work.jobs[i].offset = bytes;
            bytes += work.jobs[i].methods->bytes(work.jobs[i]);
        }
        memory.grow(bytes + threads.count * work.scratch + 64);
        char* const at = memory.data + 64 - reinterpret_cast<u64>(memory.data) % 64;
        scratch = at + bytes;
        for (i64 i = 0; i < work.count; ++i) {
            work.jobs[i].memory = at + work.jobs[i].offset;
            courses[i].methods->begin(courses[i]);
        }
    }

    template <class R>
    static void choose(const Program<R>& program, Course& course) {
        if (course.job->program != &program) return;
        course.methods = in_type(course.job->in_double, [](auto number) {
            return &PartingOf<R, decltype(number)>::METHODS;
        });
    }

    // Goes on until sums are to be completed; whether there are any.
    bool advance() {
        take_back();
        do {
            share(&Walk::proceed, work.count);
            share(&Walk::sweep, blocks());
        } while (any(Course::JOINED));
        hand_over();
        return any(Course::WAITS);
    }

    bool any(int state) const {
        for (i64 i = 0; i < work.count; ++i)
            if (courses[i].state == state) return true;
        return false;
    }

    void proceed(i64 i, char*) {
        if (courses[i].state == Course::JOINED) courses[i].methods->proceed(courses[i]);
    }

    // Lays out the blocks that are to be swept; how many they are.
    i64 blocks() {
        i64 count = 0;
        for (i64 i = 0; i < work.count; ++i) {
            first[i] = count;
            if (courses[i].state != Course::SWEEPS) continue;
            Job& job = *courses[i].job;
            job.left = job.blocks;
            count += job.blocks;
            if (!job.blocks) courses[i].methods->join(courses[i]);
        }
        first[work.count] = count;
        return count;
    }

    // Whoever does a tensor's last block puts together what all have left.
    void sweep(i64 block, char* mine) {
        i64 i = 0;
        for (i64 end = work.count; i + 1 < end;) {
            const i64 middle = (i + end) / 2;
            (first[middle] <= block ? i : end) = middle;
        }
        Course& course = courses[i];
        Job& job = *course.job;
        job.methods->sweep(job, course.pass, block - first[i], mine);
        if (!__atomic_sub_fetch(&job.left, 1, __ATOMIC_ACQ_REL)) course.methods->join(course);
    }

    // Some work on many things, by whoever is free.
    struct Turn {
        Walk& walk;
        void (Walk::*work)(i64, char*);
        i64 count, next;
        bool alone;
    };

    void share(void (Walk::*each)(i64, char*), i64 count) {
        Turn turn{*this, each, count, 0, threads.count == 1 || work.traffic <= SERIAL};
        if (turn.alone) enter(&turn);
        else threads.parallel(enter, &turn, unsigned(threads.count), 0);
    }

    static void enter(void* at) {
        Turn& turn = *static_cast<Turn*>(at);
        Walk& walk = turn.walk;
        char* const mine = walk.scratch + (turn.alone ? 0 : walk.threads.id()) * walk.work.scratch;
        for (i64 i; (i = __atomic_fetch_add(&turn.next, 1, __ATOMIC_RELAXED)) < turn.count;)
            (walk.*turn.work)(i, mine);
    }

    // Numbers that are to be completed lie side by side, those of the same processes together.
    struct Copying {
        double** at; // [channel], where the next ones go; null while they are counted
        i64* counts;
        bool back;
    };

    static void copy(void* to, i64 channel, double* numbers, i64 count) {
        const Copying& copying = *static_cast<Copying*>(to);
        if (!copying.at) {
            copying.counts[channel] += count;
            return;
        }
        double*& at = copying.at[channel];
        __builtin_memcpy(copying.back ? numbers : at, copying.back ? at : numbers, u64(count) * 8);
        at += count;
    }

    void list(Copying copying) {
        for (i64 i = 0; i < work.count; ++i)
            if (courses[i].state == Course::WAITS)
                courses[i].methods->list(courses[i], copy, &copying);
    }

    void copy_all(bool back) {
        Buffer<double*> at(2 * shards.partners + 1);
        at[0] = numbers.data;
        for (i64 c = 0; c < 2 * shards.partners; ++c) at[c + 1] = at[c] + shards.counts[c];
        list({at.data, nullptr, back});
    }

    void hand_over() {
        i64 count = 0;
        for (i64 c = 0; c < 2 * shards.partners; ++c) shards.counts[c] = 0;
        list({nullptr, shards.counts, false});
        for (i64 c = 0; c < 2 * shards.partners; ++c) count += shards.counts[c];
        if (count > room) numbers.grow(room = count);
        shards.numbers = numbers.data;
        copy_all(false);
    }

    void take_back() {
        copy_all(true);
        for (i64 i = 0; i < work.count; ++i)
            if (courses[i].state == Course::WAITS) courses[i].state = Course::JOINED;
    }
};

template <class... R>
struct WalkOf : Program<R>..., Walk {
    WalkOf(const Table& table, const Threads& threads)
        : Program<R>(table)..., Walk(table, threads, static_cast<const Program<R>&>(*this)...) {
        this->end = [](Walk* walk) { delete static_cast<WalkOf*>(walk); };
    }
};

// The beginning of a step of all tensors of the table.
template <class... R>
void step(const Table& table, const Threads& threads) {
    table.shards->walk = new WalkOf<R...>(table, threads);
}

}  // namespace optgen

extern "C" int optgen_advance(optgen::Walk* walk) { return walk->advance(); }
extern "C" void optgen_end(optgen::Walk* walk) { walk->end(walk); }
