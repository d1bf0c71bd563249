// How a tensor of which this process holds a part is taken through its passes: with stops, wherever
// what comes next reads sums that the processes with the other parts must complete.
#include "optgen/runtime/fused_cpu/include/schedule.h"

namespace optgen {

struct Parting;

// How far a tensor has come.
struct Course {
    Job* job;
    const Parting* methods;
    enum { SWEEPS, JOINED, WAITS, ENDED } state; // JOINED: has all that its next steps read
    int pass, step;                              // the steps of its finish begin here
    u64 incomplete;                              // reductions that only this process has made
};

// What is done with a course, whatever its rule.
struct Parting {
    void (*begin)(Course&);
    void (*join)(Course&);
    void (*proceed)(Course&);
    void (*list)(const Course&, void (*)(void*, i64 channel, double*, i64 count), void*);
};

// A tensor on its course, with its workspace.
template <class R, class C>
struct Travelling : Tensor<R, C> {
    using Tensor<R, C>::job, Tensor<R, C>::program;

    Course& course;

    explicit Travelling(Course& given)
        : Tensor<R, C>(*static_cast<const Program<R>*>(given.job->program), *given.job),
          course(given) {}

    const Pass& pass() const { return this->passes()[course.pass]; }

    // Of no elements there is no block that would begin the sums.
    void begin() const {
        Tensor<R, C>::begin();
        for (int k = 0; !job.blocks && k < R::STEP_COUNT; ++k)
            if (R::STEPS[k].kind != Step::LOOP && !job.has_whole(R::STEPS[k].axes))
                for (i64 i = 0; i < count(k); ++i) result(k)[i] = 0;
    }

    // Puts together what the blocks of a sweep have left.
    void join() const {
        for (int k = 0; k < R::STEP_COUNT; ++k) {
            const Step& step = R::STEPS[k];
            if (!(pass().steps >> k & 1) || step.kind == Step::LOOP) continue;
            if (job.has_whole(step.axes)) continue;
            Tensor<R, C>::join(step);
            made(k);
        }
        course.step = 0;
        course.state = course.incomplete ? Course::WAITS : Course::JOINED;
    }

    // Runs what waited for sums, until others are to be completed or the elements are swept again.
    void proceed() const {
        for (; course.incomplete; course.incomplete &= course.incomplete - 1)
            put(__builtin_ctzll(course.incomplete));
        for (int& k = course.step; k < R::STEP_COUNT; ++k) {
            if (!(pass().finish >> k & 1)) continue;
            const Step& step = R::STEPS[k];
            if (step.kind != Step::LOOP) reduce(k);
            else if (!course.incomplete) this->whole_step(k, step);
            else break;
        }
        if (course.incomplete) {
            course.state = Course::WAITS;
            return;
        }
        this->store(pass());
        course.state = ++course.pass < job.passes ? Course::SWEEPS : Course::ENDED;
    }

    void reduce(int k) const {
        if constexpr (R::HAS_AXES) Tensor<R, C>::reduce(R::STEPS[k], result(k));
        made(k);
    }

    void made(int k) const {
        if (partner(k) >= 0) course.incomplete |= u64(1) << k;
        else put(k);
    }

    void put(int k) const {
        if constexpr (R::HAS_AXES) Tensor<R, C>::put(R::STEPS[k], result(k));
    }

    double* result(int k) const { return this->joined(R::STEPS[k]); }

    i64 count(int k) const {
        return R::STEPS[k].axes == NONE ? 1 : job.all().count(R::STEPS[k].axes);
    }

    // Who has what is missing of a sum: those whose parts it goes over.
    i64 partner(int k) const {
        const Step& step = R::STEPS[k];
        const int from = step.reads ? R::AXES[__builtin_ctzll(step.reads)] : int(TENSOR);
        return program.table.shards->of[job.tensor].partners[from & ~step.axes];
    }

    void list(void (*take)(void*, i64, double*, i64), void* taker) const {
        for (u64 left = course.incomplete; left; left &= left - 1) {
            const int k = __builtin_ctzll(left);
            const i64 channel = 2 * partner(k) + (R::STEPS[k].kind == Step::LARGEST);
            take(taker, channel, result(k), count(k));
        }
    }
};

template <class R, class C>
struct PartingOf {
    using It = Travelling<R, C>;
    static void begin(Course& course) { It(course).begin(); }
    static void join(Course& course) { It(course).join(); }
    static void proceed(Course& course) { It(course).proceed(); }
    static void list(const Course& course, void (*take)(void*, i64, double*, i64), void* taker) {
        Course copy = course;
        It(copy).list(take, taker);
    }
    static constexpr Parting METHODS{begin, join, proceed, list};
};

}  // namespace optgen
