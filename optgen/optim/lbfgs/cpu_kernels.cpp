// Two-loop recursion of LBFGS, in compact form: three passes over the history. A pass reads each
// row once from memory; a second reading of a block finds it in the cache. Vectors are split into
// blocks that stay in the cache, and threads share parts of several blocks. Blocks and parts depend
// on sizes alone, and the sums of parts are added in order, so results have the same bits for any
// number of threads.

#include "vectors.h"

extern "C" {

// `Job` of history.py, field by field. Rows are `stride` elements apart, in a ring of `slots`
// rows. The row after the newest pair is free.
struct Job {
    i64 elements, stride, slots, oldest_row, pair_count;
    void *steps, *changes; // matrices S and Y, a row per pair
    void *gradient, *previous_gradient, *direction;
    void* scratch;             // memory of a vector, for the q below
    double *products, *alphas; // R = Sᵀ Y, row by row; results of the first loop
    double scale, step_length; // scale: the inverse Hessian before the first pair is scale * I
    i64 lacks_last_column;     // whether R's last column must be computed
    double result[2];          // of `write_pair` or `add_steps`
};

// First fields of `Threads` of runtime/fused_cpu/kernel.py: torch's own thread pool.
struct Threads {
    int count;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*id)();
    int (*team)();
};
}

namespace {

// Bytes of all rows of a block: half of a second-level cache of 1 MiB.
constexpr i64 BLOCK_BYTES = 512 << 10;
constexpr i64 MIN_BLOCK_ELEMENTS = 256, MAX_BLOCK_ELEMENTS = 4096, BLOCK_ALIGNMENT = 64;
// A pass over fewer bytes runs on one thread.
constexpr i64 MIN_PARALLEL_BYTES = 4 << 20;
// Enough parts for all threads, but few partial sums to add.
constexpr i64 MAX_PARTS = 128;
// Rows that are multiplied together with a vector, which is loaded once for all of them.
constexpr int ROWS_AT_ONCE = 8;

// Partition of a vector into blocks, such that `cached_rows` rows of a block fit in the cache: all
// rows if a pass reads them twice, else 1.
struct Partition {
    i64 elements, block_elements, block_count, part_count;

    Partition(i64 vector_elements, i64 cached_rows, i64 element_bytes) : elements(vector_elements) {
        const i64 cached_elements = BLOCK_BYTES / (max<i64>(cached_rows, 1) * element_bytes);
        const i64 aligned_elements = cached_elements / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
        block_elements = min(max(aligned_elements, MIN_BLOCK_ELEMENTS), MAX_BLOCK_ELEMENTS);
        block_count = (elements + block_elements - 1) / block_elements;
        part_count = min(block_count, MAX_PARTS);
    }
    i64 begin(i64 part) const {
        return min(part * block_count / part_count * block_elements, elements);
    }
};

// Runs `work(part)` for every part, on several threads if that pays.
template <class Work>
class ParallelFor {
    const Work& work;
    const Threads& threads;
    i64 part_count;

    static void run_thread(void* argument) {
        const ParallelFor& loop = *static_cast<ParallelFor*>(argument);
        const i64 id = loop.threads.id(), team = loop.threads.team();
        const i64 end = loop.part_count * (id + 1) / team;
        for (i64 part = loop.part_count * id / team; part < end; ++part) loop.work(part);
    }

public:
    ParallelFor(const Work& part_work, const Threads& pool, i64 count)
        : work(part_work), threads(pool), part_count(count) {}

    void run(i64 bytes) {
        if (threads.count > 1 && bytes >= MIN_PARALLEL_BYTES)
            threads.parallel(run_thread, this, unsigned(threads.count), /*flags=*/0);
        else
            for (i64 part = 0; part < part_count; ++part) work(part);
    }
};

template <class Work>
void for_each_part(
    const Partition& partition, const Threads& threads, i64 bytes, const Work& work) {
    ParallelFor<Work>(work, threads, partition.part_count).run(bytes);
}

// Sums of every part, which `total` adds in the order of the parts.
struct Partials {
    i64 sums_per_part, part_count;
    double* sums;

    Partials(i64 sum_count, i64 parts)
        : sums_per_part(sum_count), part_count(parts),
          sums(static_cast<double*>(__builtin_calloc(sum_count * parts + 1, sizeof(double)))) {
        if (!sums) __builtin_trap();
    }
    Partials(const Partials&) = delete;
    ~Partials() { __builtin_free(sums); }
    double* of_part(i64 part) { return sums + part * sums_per_part; }
    double total(i64 index) const {
        double sum = 0;
        for (i64 part = 0; part < part_count; ++part) sum += sums[part * sums_per_part + index];
        return sum;
    }
};

// One job, for vectors of one dtype.
template <class T>
class TwoLoop {
    Job& job;
    const Threads& threads;
    // For passes that read the rows of a block once, or twice.
    const Partition single_read_partition, double_read_partition;
    T *const gradient, *const previous_gradient, *const direction, *const scratch;

    static T* vector(void* data) { return static_cast<T*>(data); }

    // Returns the address of element `offset` of a row. Row 0 is the oldest.
    T* row(void* matrix, i64 index, i64 offset) const {
        return vector(matrix) + (job.oldest_row + index) % job.slots * job.stride + offset;
    }

    template <int N, int K>
    void dot_rows(
        void* matrix, i64 first_row, i64 offset, i64 n, const T* const* vectors,
        double* sums) const {
        T* rows[N];
        for (int i = 0; i < N; ++i) rows[i] = row(matrix, first_row + i, offset);
        dots<N, K>(rows, vectors, n, sums + first_row * K);
    }

    // Adds the dot products of all rows with K vectors, in a block.
    template <int K>
    void dot_all_rows(
        void* matrix, i64 offset, i64 n, const T* const* vectors, double* sums) const {
        i64 i = 0;
        for (; i + ROWS_AT_ONCE <= job.pair_count; i += ROWS_AT_ONCE)
            dot_rows<ROWS_AT_ONCE, K>(matrix, i, offset, n, vectors, sums);
        for (; i < job.pair_count; ++i) dot_rows<1, K>(matrix, i, offset, n, vectors, sums);
    }

    template <int N>
    void subtract_rows(
        void* matrix, i64 first_row, i64 offset, i64 n, const double* weights, T* to) const {
        T* rows[N];
        for (int i = 0; i < N; ++i) rows[i] = row(matrix, first_row + i, offset);
        subtract_weighted<N>(rows, weights + first_row, n, to + offset);
    }

    // Subtracts the weighted sum of all rows from a vector, in a block.
    void subtract_all_rows(void* matrix, i64 offset, i64 n, const double* weights, T* to) const {
        i64 i = 0;
        for (; i + ROWS_AT_ONCE <= job.pair_count; i += ROWS_AT_ONCE)
            subtract_rows<ROWS_AT_ONCE>(matrix, i, offset, n, weights, to);
        for (; i < job.pair_count; ++i) subtract_rows<1>(matrix, i, offset, n, weights, to);
    }

    // Calls `work(offset, n)` for every block of a part.
    template <class Work>
    static void for_each_block(const Partition& partition, i64 part, const Work& work) {
        const i64 end = partition.begin(part + 1);
        for (i64 offset = partition.begin(part); offset < end; offset += partition.block_elements)
            work(offset, min(partition.block_elements, end - offset));
    }

    i64 bytes(i64 vectors) const { return vectors * job.elements * i64(sizeof(T)); }

    // Adds every sum up over all parts, and writes it to `to`.
    void store_totals(const Partials& sums, double* to) const {
        for (i64 i = 0; i < sums.sums_per_part; ++i) to[i] = sums.total(i);
    }

    // Runs the first loop: R⁻¹ Sᵀ g, in place of Sᵀ g.
    void first_loop(double* alphas) const {
        const i64 pairs = job.pair_count;
        for (i64 i = pairs - 1; i >= 0; --i) {
            const double* const r = job.products + i * pairs;
            double value = alphas[i];
            for (i64 j = pairs - 1; j > i; --j) value -= r[j] * alphas[j];
            alphas[i] = value / r[i];
        }
    }

    // Runs the second loop: R⁻ᵀ (D alphas - scale Yᵀ q), in place of Yᵀ q.
    void second_loop(double* weights) const {
        const i64 pairs = job.pair_count;
        for (i64 i = 0; i < pairs; ++i)
            weights[i] = job.products[i * pairs + i] * job.alphas[i] - job.scale * weights[i];
        for (i64 i = 0; i < pairs; ++i) {
            const double* const r = job.products + i * pairs;
            weights[i] /= r[i];
            for (i64 j = i + 1; j < pairs; ++j) weights[j] -= r[j] * weights[i];
        }
    }

    // Computes Sᵀ g, and Sᵀ y for the newest change y if R has no column for y yet.
    template <int K>
    void project() {
        Partials sums(job.pair_count * K, single_read_partition.part_count);
        for_each_part(single_read_partition, threads, bytes(job.pair_count + K), [&](i64 part) {
            for_each_block(single_read_partition, part, [&](i64 offset, i64 n) {
                const T* const newest_change = row(job.changes, job.pair_count - 1, offset);
                const T* const vectors[2] = {gradient + offset, newest_change};
                dot_all_rows<K>(job.steps, offset, n, vectors, sums.of_part(part));
            });
        });
        const i64 pairs = job.pair_count;
        for (i64 i = 0; i < pairs; ++i) {
            job.alphas[i] = sums.total(i * K);
            if (K == 2) job.products[i * pairs + pairs - 1] = sums.total(i * K + 1);
        }
    }

    // Computes q = g - Y alphas, and writes Yᵀ q to `products_with_q`.
    void remove_changes(double* products_with_q) {
        Partials sums(job.pair_count, double_read_partition.part_count);
        for_each_part(double_read_partition, threads, bytes(job.pair_count + 2), [&](i64 part) {
            for_each_block(double_read_partition, part, [&](i64 offset, i64 n) {
                for (i64 i = 0; i < n; ++i) scratch[offset + i] = gradient[offset + i];
                subtract_all_rows(job.changes, offset, n, job.alphas, scratch);
                const T* const vectors[1] = {scratch + offset};
                dot_all_rows<1>(job.changes, offset, n, vectors, sums.of_part(part));
            });
        });
        store_totals(sums, products_with_q);
    }

    // Computes d = -scale q - S weights. The results are the dot product of d with g, and the
    // greatest absolute value in d.
    void add_steps(const double* weights) {
        Partials sums(2, single_read_partition.part_count);
        for_each_part(single_read_partition, threads, bytes(job.pair_count + 3), [&](i64 part) {
            for_each_block(single_read_partition, part, [&](i64 offset, i64 n) {
                const T factor = T(-job.scale);
                for (i64 i = 0; i < n; ++i) direction[offset + i] = factor * scratch[offset + i];
                subtract_all_rows(job.steps, offset, n, weights, direction);
                double* const slope_and_max = sums.of_part(part);
                T* const rows[1] = {direction + offset};
                const T* const vectors[1] = {gradient + offset};
                dots<1, 1>(rows, vectors, n, slope_and_max); // adds to the slope
                slope_and_max[1] = max_abs(direction + offset, n, slope_and_max[1]);
            });
        });
        job.result[0] = sums.total(0);
        job.result[1] = 0;
        for (i64 part = 0; part < single_read_partition.part_count; ++part)
            job.result[1] = max(job.result[1], sums.of_part(part)[1]);
    }

public:
    TwoLoop(Job& lbfgs_job, const Threads& pool)
        : job(lbfgs_job), threads(pool), single_read_partition(job.elements, 1, sizeof(T)),
          double_read_partition(job.elements, job.pair_count, sizeof(T)),
          gradient(vector(job.gradient)), previous_gradient(vector(job.previous_gradient)),
          direction(vector(job.direction)), scratch(vector(job.scratch)) {}

    // Writes the step, and the change of the gradient along the step, to the free rows. The results
    // are the dot products of the change with the step and with itself.
    void write_pair() {
        Partials sums(2, single_read_partition.part_count);
        const T step_length = T(job.step_length);
        for_each_part(single_read_partition, threads, bytes(/*vectors=*/5), [&](i64 part) {
            for_each_block(single_read_partition, part, [&](i64 offset, i64 n) {
                T* const step = row(job.steps, job.pair_count, offset);
                T* const change = row(job.changes, job.pair_count, offset);
                for (i64 i = 0; i < n; ++i) step[i] = direction[offset + i] * step_length;
                for (i64 i = 0; i < n; ++i)
                    change[i] = gradient[offset + i] - previous_gradient[offset + i];
                T* const rows[1] = {change};
                const T* const vectors[2] = {step, change};
                dots<1, 2>(rows, vectors, n, sums.of_part(part));
            });
        });
        store_totals(sums, job.result);
    }

    // Computes the direction: minus the inverse Hessian times the gradient.
    void compute_direction() {
        if (job.lacks_last_column) project<2>();
        else project<1>();
        first_loop(job.alphas);
        Partials weights(job.pair_count, 1); // a buffer: Yᵀ q, then weights of the second loop
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
