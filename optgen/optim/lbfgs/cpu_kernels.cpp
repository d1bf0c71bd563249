// LBFGS's sweeps over its history. Each sweep reads each row once. A vector is cut into blocks,
// which fit into the cache, and into parts of several blocks, which threads share. Both depend on
// sizes only, and sums of parts are added in order. So results are equal for any number of threads.

#include "vectors.h"

extern "C" {

// The fields of `_Job` in cpu_kernels.py. There are `slots` rows in a ring, `stride` elements
// apart. The oldest pair is row `first`, and the row after the newest is free.
struct Job {
    i64 elements, stride, slots, first, count;
    void *steps, *changes;                        // the rows
    void *gradient, *previous, *direction, *rest; // vectors
    double *products, *alphas;                    // R = Sᵀ Y, row-major; first-loop coefficients
    double scale, t;
    i64 fresh;                                    // the last column of R is still to be computed
    double result[2];
};

// The first fields of `Threads` in runtime/fused_cpu/threads.py: torch's thread pool.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team)();
};
}

namespace {

constexpr i64 CACHED = 512 << 10; // bytes of all rows of a block: half of an L2 cache
constexpr i64 SERIAL = 4 << 20;   // bytes of a sweep below which a second thread does not help
constexpr i64 PARTS = 128;        // the most parts: enough for threads, few partial sums to add
constexpr int TOGETHER = 8;       // rows that are multiplied with the same loaded vector

// The blocks and parts of a vector, for a history of so many rows.
struct Cut {
    i64 elements, block, blocks, parts;

    Cut(i64 n, i64 rows, i64 size) : elements(n) {
        const i64 fitting = CACHED / (larger<i64>(rows, 1) * size) / 64 * 64;
        block = smaller<i64>(larger<i64>(fitting, 256), 4096);
        blocks = (n + block - 1) / block;
        parts = smaller(blocks, PARTS);
    }
    i64 begin(i64 part) const { return smaller(part * blocks / parts * block, elements); }
};

// Runs `work(part)` for every part, on several threads if the sweep is large enough.
template <class Work>
class Region {
    const Work& work;
    const Threads& threads;
    i64 parts;

    static void share(void* given) {
        const Region& region = *static_cast<Region*>(given);
        const i64 id = region.threads.id(), team = region.threads.team();
        const i64 end = region.parts * (id + 1) / team;
        for (i64 part = region.parts * id / team; part < end; ++part) region.work(part);
    }

public:
    Region(const Work& given, const Threads& pool, i64 count)
        : work(given), threads(pool), parts(count) {}

    void run(i64 bytes) {
        if (threads.count > 1 && bytes >= SERIAL)
            threads.parallel(share, this, unsigned(threads.count), 0);
        else
            for (i64 part = 0; part < parts; ++part) work(part);
    }
};

template <class Work>
void sweep(const Cut& cut, const Threads& threads, i64 bytes, const Work& work) {
    Region<Work>(work, threads, cut.parts).run(bytes);
}

// Sums of every part, added in the order of the parts.
struct Partials {
    i64 width, parts;
    double* sums;

    Partials(i64 count, i64 of)
        : width(count), parts(of),
          sums(static_cast<double*>(__builtin_calloc(count * of + 1, sizeof(double)))) {
        if (!sums) __builtin_trap();
    }
    Partials(const Partials&) = delete;
    ~Partials() { __builtin_free(sums); }
    double* of(i64 part) { return sums + part * width; }
    double total(i64 which) const {
        double sum = 0;
        for (i64 part = 0; part < parts; ++part) sum += sums[part * width + which];
        return sum;
    }
};

// One job, for the dtype of its vectors.
template <class T>
class Trip {
    Job& job;
    const Threads& threads;
    const Cut wide, narrow; // for rows that are read once in a block, and for rows read twice
    T *const gradient, *const previous, *const direction, *const rest;

    static T* vector(void* at) { return static_cast<T*>(at); }

    // Returns the address of an element of a row; row 0 is the oldest.
    T* row(void* matrix, i64 which, i64 at) const {
        return vector(matrix) + (job.first + which) % job.slots * job.stride + at;
    }

    template <int N, int K>
    void dot_some(void* matrix, i64 from, i64 at, i64 n, const T* const* with, double* sums) const {
        T* rows[N];
        for (int i = 0; i < N; ++i) rows[i] = row(matrix, from + i, at);
        dots<N, K>(rows, with, n, sums + from * K);
    }

    // Adds the dot products of all rows with K vectors, for one block.
    template <int K>
    void dot_all(void* matrix, i64 at, i64 n, const T* const* with, double* sums) const {
        i64 i = 0;
        for (; i + TOGETHER <= job.count; i += TOGETHER)
            dot_some<TOGETHER, K>(matrix, i, at, n, with, sums);
        for (; i < job.count; ++i) dot_some<1, K>(matrix, i, at, n, with, sums);
    }

    template <int N>
    void subtract_some(void* matrix, i64 from, i64 at, i64 n, const double* weights, T* to) const {
        T* rows[N];
        for (int i = 0; i < N; ++i) rows[i] = row(matrix, from + i, at);
        subtract<N>(rows, weights + from, n, to + at);
    }

    // Subtracts the weighted rows, for one block.
    void subtract_all(void* matrix, i64 at, i64 n, const double* weights, T* to) const {
        i64 i = 0;
        for (; i + TOGETHER <= job.count; i += TOGETHER)
            subtract_some<TOGETHER>(matrix, i, at, n, weights, to);
        for (; i < job.count; ++i) subtract_some<1>(matrix, i, at, n, weights, to);
    }

    // Calls `work(at, n)` for every block of a part.
    template <class Work>
    static void blocks(const Cut& cut, i64 part, const Work& work) {
        const i64 end = cut.begin(part + 1);
        for (i64 at = cut.begin(part); at < end; at += cut.block)
            work(at, smaller(cut.block, end - at));
    }

    i64 bytes(i64 vectors) const { return vectors * job.elements * i64(sizeof(T)); }

    // Adds sums[row * K + k] over all parts, into `to`.
    void total(const Partials& sums, double* to) const {
        for (i64 i = 0; i < sums.width; ++i) to[i] = sums.total(i);
    }

    // Computes the first loop: alphas = R⁻¹ Sᵀ g.
    void first_loop(double* values) const {
        const i64 n = job.count;
        for (i64 i = n - 1; i >= 0; --i) {
            const double* const r = job.products + i * n;
            double value = values[i];
            for (i64 j = n - 1; j > i; --j) value -= r[j] * values[j];
            values[i] = value / r[i];
        }
    }

    // Computes the second loop: R⁻ᵀ (D alphas - scale Yᵀ q), in place of Yᵀ q.
    void second_loop(double* values) const {
        const i64 n = job.count;
        for (i64 i = 0; i < n; ++i)
            values[i] = job.products[i * n + i] * job.alphas[i] - job.scale * values[i];
        for (i64 i = 0; i < n; ++i) {
            const double* const r = job.products + i * n;
            values[i] /= r[i];
            for (i64 j = i + 1; j < n; ++j) values[j] -= r[j] * values[i];
        }
    }

    // Computes Sᵀ g, and Sᵀ y for the newest change y if R has no column for it yet.
    template <int K>
    void project() {
        Partials sums(job.count * K, wide.parts);
        sweep(wide, threads, bytes(job.count + K), [&](i64 part) {
            blocks(wide, part, [&](i64 at, i64 n) {
                const T* const with[2] = {gradient + at, row(job.changes, job.count - 1, at)};
                dot_all<K>(job.steps, at, n, with, sums.of(part));
            });
        });
        for (i64 i = 0; i < job.count; ++i) {
            job.alphas[i] = sums.total(i * K);
            if (K == 2) job.products[i * job.count + job.count - 1] = sums.total(i * K + 1);
        }
    }

    // Computes q = g - Y alphas, and Yᵀ q into `values`.
    void remove_changes(double* values) {
        Partials sums(job.count, narrow.parts);
        sweep(narrow, threads, bytes(job.count + 2), [&](i64 part) {
            blocks(narrow, part, [&](i64 at, i64 n) {
                for (i64 i = 0; i < n; ++i) rest[at + i] = gradient[at + i];
                subtract_all(job.changes, at, n, job.alphas, rest);
                const T* const with[1] = {rest + at};
                dot_all<1>(job.changes, at, n, with, sums.of(part));
            });
        });
        total(sums, values);
    }

    // Computes d = -scale q - S weights, its dot product with g, and its largest magnitude.
    void add_steps(const double* weights) {
        Partials sums(2, wide.parts);
        sweep(wide, threads, bytes(job.count + 3), [&](i64 part) {
            blocks(wide, part, [&](i64 at, i64 n) {
                const T factor = T(-job.scale);
                for (i64 i = 0; i < n; ++i) direction[at + i] = factor * rest[at + i];
                subtract_all(job.steps, at, n, weights, direction);
                double* const found = sums.of(part);
                T* const here[1] = {direction + at};
                const T* const with[1] = {gradient + at};
                dots<1, 1>(here, with, n, found); // adds to found[0]
                found[1] = farthest(direction + at, n, found[1]);
            });
        });
        job.result[0] = sums.total(0);
        job.result[1] = 0;
        for (i64 part = 0; part < wide.parts; ++part)
            job.result[1] = larger(job.result[1], sums.of(part)[1]);
    }

public:
    Trip(Job& given, const Threads& pool)
        : job(given), threads(pool), wide(job.elements, 1, sizeof(T)),
          narrow(job.elements, job.count, sizeof(T)),
          gradient(vector(job.gradient)), previous(vector(job.previous)),
          direction(vector(job.direction)), rest(vector(job.rest)) {}

    // Writes the step and the change of the gradient to the free rows. Computes the dot products of
    // the change with the step and with itself.
    void observe() {
        Partials sums(2, wide.parts);
        const T t = T(job.t);
        sweep(wide, threads, bytes(5), [&](i64 part) {
            blocks(wide, part, [&](i64 at, i64 n) {
                T* const step = row(job.steps, job.count, at);
                T* const change = row(job.changes, job.count, at);
                for (i64 i = 0; i < n; ++i) step[i] = direction[at + i] * t;
                for (i64 i = 0; i < n; ++i) change[i] = gradient[at + i] - previous[at + i];
                T* const one[1] = {change};
                const T* const with[2] = {step, change};
                dots<1, 2>(one, with, n, sums.of(part));
            });
        });
        total(sums, job.result);
    }

    // Computes minus the inverse Hessian times the gradient.
    void direct() {
        if (job.fresh) project<2>();
        else project<1>();
        first_loop(job.alphas);
        Partials weights(job.count, 1);
        remove_changes(weights.sums);
        second_loop(weights.sums);
        add_steps(weights.sums);
    }
};

} // namespace

extern "C" {
void observe_float32(Job* job, const Threads* threads) { Trip<float>(*job, *threads).observe(); }
void observe_float64(Job* job, const Threads* threads) { Trip<double>(*job, *threads).observe(); }
void direct_float32(Job* job, const Threads* threads) { Trip<float>(*job, *threads).direct(); }
void direct_float64(Job* job, const Threads* threads) { Trip<double>(*job, *threads).direct(); }
}
