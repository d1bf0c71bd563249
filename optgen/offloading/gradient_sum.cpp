// Adds a gradient that has arrived to the sum of gradients on the host, and squares the sum, in one
// pass over memory.
#include "optgen/runtime/fused_cpu/include/tensor_table.h"

namespace optgen {
namespace {

constexpr i64 CHUNK = 1 << 16; // elements of which the squares are summed to one number
constexpr i64 TILE = 1 << 10;  // elements that stay in the nearest cache

typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));

// Sums squares in eight sums, whatever the CPU's vectors are. A square of a float is exact in
// double, so a fused multiply-add has the same bits.
struct Squares {
    Doubles sums{};

    void add(const float* from, i64 n) {
        i64 i = 0;
        for (; i + 8 <= n; i += 8) {
            Floats x;
            __builtin_memcpy(&x, from + i, sizeof x);
            const Doubles y = __builtin_convertvector(x, Doubles);
            sums += y * y;
        }
        for (; i < n; ++i) sums[i % 8] += double(from[i]) * double(from[i]);
    }
    double total() const {
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
               ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
};

// `GradientSum` of gradient_sum.py, field by field.
struct GradientSum {
    void* sum;
    const void* arrived;   // null: only the squares are wanted
    double* chunk_squares; // one number for each chunk, or null
    i64 count;
    u32 sum_dtype, arrived_dtype;
    int begins;            // whether the sum begins with this gradient
};

constexpr u32 DTYPES = 1 << FLOAT16 | 1 << FLOAT32 | 1 << BFLOAT16;

struct Addition {
    const GradientSum& task;

    void run_thread(int thread, int thread_count) const {
        const i64 chunks = (task.count + CHUNK - 1) / CHUNK;
        for (i64 chunk = thread; chunk < chunks; chunk += thread_count) {
            const i64 first = chunk * CHUNK;
            const double square = add(first, min(first + CHUNK, task.count));
            if (task.chunk_squares) task.chunk_squares[chunk] = square;
        }
    }

    // Adds elements [first, end); returns the sum of their squares, if it is wanted.
    double add(i64 first, i64 end) const {
        float arrived[TILE], sum[TILE];
        Squares squares;
        for (i64 i = first; i < end; i += TILE) {
            const i64 n = min(TILE, end - i);
            float* const values = task.begins ? arrived : sum;
            if (!task.begins) read<DTYPES>(task.sum_dtype, task.sum, i, n, sum);
            if (task.arrived) {
                read<DTYPES>(task.arrived_dtype, task.arrived, i, n, arrived);
                if (!task.begins)
                    for (i64 j = 0; j < n; ++j) sum[j] += arrived[j];
                write<DTYPES>(task.sum_dtype, values, task.sum, i, n);
                if (task.sum_dtype != FLOAT32) read<DTYPES>(task.sum_dtype, task.sum, i, n, values);
            }
            if (task.chunk_squares) squares.add(values, n);
        }
        return squares.total();
    }
};

}  // namespace
}  // namespace optgen

extern "C" const long long optgen_chunk = optgen::CHUNK;

extern "C" void optgen_add_gradient(
    const optgen::GradientSum* task, const optgen::Threads* threads) {
    optgen::Addition addition{*task};
    const auto bytes = optgen::itemsize(task->sum_dtype) + optgen::itemsize(task->arrived_dtype);
    optgen::run_on_threads(addition, *threads, task->count * bytes);
}
