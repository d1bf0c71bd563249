// Two-loop recursion of LBFGS, in compact form: three passes over the history. A pass reads each
// row once from memory; a second reading of a block finds it in the cache. Vectors are split into
// blocks that stay in the cache, and into parts of several blocks that threads share. Both depend
// on sizes alone, and sums of parts are added in order, so results have the same bits for any number
// of threads.

#include "vectors.h"

extern "C" {

// `_Job` of cpu_kernels.py, field by field. Rows are `stride` elements apart, in a ring of `slots`
// rows. The oldest pair is in row `first`. The row after the newest pair is free.
struct Job {
    i64 elements, stride, slots, first, count;
    void *steps, *changes;                        // matrices S and Y, a row per pair
    void *gradient, *previous, *direction, *rest; // vectors; rest: the q below
    double *products, *alphas;                    // R = Sᵀ Y by rows; results of the first loop
    double scale, t;
    i64 lacks_last_column;                        // whether R's last column must be computed
    double result[2];
};

// First fields of `Threads` of runtime/fused_cpu/kernel/threads.py: torch's own thread pool.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team)();
};
}

namespace {

// Bytes of all rows of a block: half of a second-level cache.
constexpr i64 BLOCK_BYTES = 512 << 10;
// Bytes of a pass below which a second thread does not pay.
constexpr i64 MIN_PARALLEL_BYTES = 4 << 20;
// The most parts: enough for all threads, and few partial sums to add.
constexpr i64 MAX_PARTS = 128;
// How many rows are multiplied at once with a vector, which is loaded once for all of them.
constexpr int ROWS_AT_ONCE = 8;

// Partition of a vector into blocks, such that `cached_rows` rows of a block fit in the cache: all
// rows if a pass reads them twice, else 1.
struct Partition {
    i64 elements, block, blocks, parts;

    Partition(i64 n, i64 cached_rows, i64 size) : elements(n) {
        const i64 fitting = BLOCK_BYTES / (max<i64>(cached_rows, 1) * size) / 64 * 64;
        block = min<i64>(max<i64>(fitting, 256), 4096);
        blocks = (n + block - 1) / block;
        parts = min(blocks, MAX_PARTS);
    }
    i64 begin(i64 part) const { return min(part * blocks / parts * block, elements); }
};

// Runs `work(part)` for every part, on several threads if that pays.
template <class Work>
class ParallelFor {
    const Work& work;
    const Threads& threads;
    i64 parts;

    static void run_thread(void* argument) {
        const ParallelFor& loop = *static_cast<ParallelFor*>(argument);
        const i64 id = loop.threads.id(), team = loop.threads.team();
        const i64 end = loop.parts * (id + 1) / team;
        for (i64 part = loop.parts * id / team; part < end; ++part) loop.work(part);
    }

public:
    ParallelFor(const Work& part_work, const Threads& pool, i64 count)
        : work(part_work), threads(pool), parts(count) {}

    void run(i64 bytes) {
        if (threads.count > 1 && bytes >= MIN_PARALLEL_BYTES)
            threads.parallel(run_thread, this, unsigned(threads.count), 0);
        else
            for (i64 part = 0; part < parts; ++part) work(part);
    }
};

template <class Work>
void for_each_part(
    const Partition& partition, const Threads& threads, i64 bytes, const Work& work) {
    ParallelFor<Work>(work, threads, partition.parts).run(bytes);
}

// Partial sums of every part, added in the order of the parts.
struct Partials {
    i64 width, parts;
    double* sums;

    Partials(i64 sum_count, i64 part_count)
        : width(sum_count), parts(part_count),
          sums(static_cast<double*>(__builtin_calloc(sum_count * part_count + 1, sizeof(double)))) {
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

// One job, for vectors of one dtype.
template <class T>
class TwoLoop {
    Job& job;
    const Threads& threads;
    const Partition read_once, read_twice; // for passes that read a block's rows once, or twice
    T *const gradient, *const previous, *const direction, *const rest;

    static T* vector(void* at) { return static_cast<T*>(at); }

    // Returns the address of element `at` of a row; row 0 is the oldest.
    T* row(void* matrix, i64 which, i64 at) const {
        return vector(matrix) + (job.first + which) % job.slots * job.stride + at;
    }

    template <int N, int K>
    void dot_some(void* matrix, i64 from, i64 at, i64 n, const T* const* others, double* sums) const {
        T* rows[N];
        for (int i = 0; i < N; ++i) rows[i] = row(matrix, from + i, at);
        dots<N, K>(rows, others, n, sums + from * K);
    }

    // Adds the dot products of all rows with K vectors, in a block.
    template <int K>
    void dot_all(void* matrix, i64 at, i64 n, const T* const* others, double* sums) const {
        i64 i = 0;
        for (; i + ROWS_AT_ONCE <= job.count; i += ROWS_AT_ONCE)
            dot_some<ROWS_AT_ONCE, K>(matrix, i, at, n, others, sums);
        for (; i < job.count; ++i) dot_some<1, K>(matrix, i, at, n, others, sums);
    }

    template <int N>
    void subtract_some(void* matrix, i64 from, i64 at, i64 n, const double* weights, T* to) const {
        T* rows[N];
        for (int i = 0; i < N; ++i) rows[i] = row(matrix, from + i, at);
        subtract_weighted<N>(rows, weights + from, n, to + at);
    }

    // Subtracts the weighted rows, in a block.
    void subtract_all(void* matrix, i64 at, i64 n, const double* weights, T* to) const {
        i64 i = 0;
        for (; i + ROWS_AT_ONCE <= job.count; i += ROWS_AT_ONCE)
            subtract_some<ROWS_AT_ONCE>(matrix, i, at, n, weights, to);
        for (; i < job.count; ++i) subtract_some<1>(matrix, i, at, n, weights, to);
    }

    // Calls `work(at, n)` for every block of a part.
    template <class Work>
    static void blocks(const Partition& partition, i64 part, const Work& work) {
        const i64 end = partition.begin(part + 1);
        for (i64 at = partition.begin(part); at < end; at += partition.block)
            work(at, min(partition.block, end - at));
    }

    i64 bytes(i64 vectors) const { return vectors * job.elements * i64(sizeof(T)); }

    // Writes every sum, added up over all parts, to `to`.
    void total(const Partials& sums, double* to) const {
        for (i64 i = 0; i < sums.width; ++i) to[i] = sums.total(i);
    }

    // Runs the first loop: alphas = R⁻¹ Sᵀ g.
    void first_loop(double* values) const {
        const i64 n = job.count;
        for (i64 i = n - 1; i >= 0; --i) {
            const double* const r = job.products + i * n;
            double value = values[i];
            for (i64 j = n - 1; j > i; --j) value -= r[j] * values[j];
            values[i] = value / r[i];
        }
    }

    // Runs the second loop: R⁻ᵀ (D alphas - scale Yᵀ q), in place of Yᵀ q.
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

    // Computes Sᵀ g, and Sᵀ y for the newest change y if R has no column for y yet.
    template <int K>
    void project() {
        Partials sums(job.count * K, read_once.parts);
        for_each_part(read_once, threads, bytes(job.count + K), [&](i64 part) {
            blocks(read_once, part, [&](i64 at, i64 n) {
                const T* const others[2] = {gradient + at, row(job.changes, job.count - 1, at)};
                dot_all<K>(job.steps, at, n, others, sums.of(part));
            });
        });
        for (i64 i = 0; i < job.count; ++i) {
            job.alphas[i] = sums.total(i * K);
            if (K == 2) job.products[i * job.count + job.count - 1] = sums.total(i * K + 1);
        }
    }

    // Computes q = g - Y alphas, and writes Yᵀ q to `values`.
    void remove_changes(double* values) {
        Partials sums(job.count, read_twice.parts);
        for_each_part(read_twice, threads, bytes(job.count + 2), [&](i64 part) {
            blocks(read_twice, part, [&](i64 at, i64 n) {
                for (i64 i = 0; i < n; ++i) rest[at + i] = gradient[at + i];
                subtract_all(job.changes, at, n, job.alphas, rest);
                const T* const others[1] = {rest + at};
                dot_all<1>(job.changes, at, n, others, sums.of(part));
            });
        });
        total(sums, values);
    }

    // Computes d = -scale q - S weights, its product with g, and its greatest absolute value.
    void add_steps(const double* weights) {
        Partials sums(2, read_once.parts);
        for_each_part(read_once, threads, bytes(job.count + 3), [&](i64 part) {
            blocks(read_once, part, [&](i64 at, i64 n) {
                const T factor = T(-job.scale);
                for (i64 i = 0; i < n; ++i) direction[at + i] = factor * rest[at + i];
                subtract_all(job.steps, at, n, weights, direction);
                double* const slope_and_max = sums.of(part);
                T* const here[1] = {direction + at};
                const T* const others[1] = {gradient + at};
                dots<1, 1>(here, others, n, slope_and_max); // adds to the first
                slope_and_max[1] = max_abs(direction + at, n, slope_and_max[1]);
            });
        });
        job.result[0] = sums.total(0);
        job.result[1] = 0;
        for (i64 part = 0; part < read_once.parts; ++part)
            job.result[1] = max(job.result[1], sums.of(part)[1]);
    }

public:
    TwoLoop(Job& the_job, const Threads& pool)
        : job(the_job), threads(pool), read_once(job.elements, 1, sizeof(T)),
          read_twice(job.elements, job.count, sizeof(T)),
          gradient(vector(job.gradient)), previous(vector(job.previous)),
          direction(vector(job.direction)), rest(vector(job.rest)) {}

    // Writes the step, and the change of the gradient along the step, to the free rows. The results
    // are the change's products with the step and with itself.
    void write_pair() {
        Partials sums(2, read_once.parts);
        const T t = T(job.t);
        for_each_part(read_once, threads, bytes(5), [&](i64 part) {
            blocks(read_once, part, [&](i64 at, i64 n) {
                T* const step = row(job.steps, job.count, at);
                T* const change = row(job.changes, job.count, at);
                for (i64 i = 0; i < n; ++i) step[i] = direction[at + i] * t;
                for (i64 i = 0; i < n; ++i) change[i] = gradient[at + i] - previous[at + i];
                T* const rows[1] = {change};
                const T* const others[2] = {step, change};
                dots<1, 2>(rows, others, n, sums.of(part));
            });
        });
        total(sums, job.result);
    }

    // Computes the direction: minus the inverse Hessian times the gradient.
    void compute_direction() {
        if (job.lacks_last_column) project<2>();
        else project<1>();
        first_loop(job.alphas);
        Partials weights(job.count, 1); // as a buffer: Yᵀ q, then the weights of the second loop
        remove_changes(weights.sums);
        second_loop(weights.sums);
        add_steps(weights.sums);
    }
};

} // namespace

extern "C" {
void write_pair_float32(Job* job, const Threads* threads) {
    TwoLoop<float>(*job, *threads).write_pair();
}
void write_pair_float64(Job* job, const Threads* threads) {
    TwoLoop<double>(*job, *threads).write_pair();
}
void compute_direction_float32(Job* job, const Threads* threads) {
    TwoLoop<float>(*job, *threads).compute_direction();
}
void compute_direction_float64(Job* job, const Threads* threads) {
    TwoLoop<double>(*job, *threads).compute_direction();
}
}
