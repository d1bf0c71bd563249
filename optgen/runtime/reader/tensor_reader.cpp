// Reads the tensors of a step from the objects of Python and torch: the addresses, dtypes and
// layouts of every parameter, its gradient and its states. In Python, this would take ten times as
// long. object_layout.py finds and checks the objects' layout. The kernel is called from here, so
// that no other Python thread can replace a tensor in between.

// With -O2, a step on 2,000 tensors takes 12 to 18 % less time than with -O1, and the build 0.13 s
// more.
#ifndef __clang__
#pragma GCC optimize("O2")
#endif

#include "optgen/runtime/reader/tensor_request.h"

namespace {

// Most of the time is spent waiting for memory: a tensor is spread over several objects, and each
// address is known only from the object before. So the reader reads a block of tensors at once,
// and prefetches the objects of some while it reads those of others.
constexpr i64 BLOCK = 32;

// A kernel for at most this many elements is short: it takes one or two milliseconds.
constexpr i64 SHORT_KERNEL_ELEMENTS = 1 << 20;

// Answers to a request; Python knows them as numbers.
enum Answer { REFUSED, DONE, NOT_AS_PLANNED };

struct Reader : Streams {
    // Tells whether the groups' lists hold the same parameters as in the last step. Fills `group`.
    bool match_lists() const {
        i64 t = 0;
        for (i64 g = 0; g < request.group_count; ++g) {
            const i64 size = layout.list_size(request.lists[g]);
            if (size > request.tensor_count - t) return false;
            for (i64 i = 0; i < size; ++i, ++t) {
                if (layout.list_item(request.lists[g], i) != request.params[t]) return false;
                request.group[t] = int(g);
                request.dtypes[t] = 0;
            }
        }
        return t == request.tensor_count;
    }

    // Reads a block of parameters and their gradients.
    bool read_parameters(i64 first, i64 last) const {
        const void *params[BLOCK], *grads[BLOCK];
        const i64 count = last - first;
        for (i64 i = 0; i < count; ++i) {
            const Object type = type_of(request.params[first + i]);
            if (!is_tensor(request.params[first + i]) && type != layout.dtensor_type) return false;
            params[i] = request.params[first + i] + layout.implementation;
            prefetch_implementation(params[i]);
        }
        for (i64 i = 0; i < count; ++i) {
            prefetch_storage(params[i]);
            prefetch(at<const void*>(at<const void*>(params[i], 0), AUTOGRAD), 2);
            prefetch(at<const void*>(at<const void*>(params[i], 0), VERSION));
        }
        for (i64 i = 0; i < count; ++i) grads[i] = layout.grad(at<const void*>(params[i], 0));
        for (i64 i = 0; i < count; ++i) prefetch_implementation(grads[i]);
        for (i64 i = 0; i < count; ++i) prefetch_storage(grads[i]);
        for (i64 i = 0; i < count; ++i)
            if (!read_parameter(first + i, params[i], grads[i])) return false;
        return true;
    }

    // Reads a parameter and its gradient, unless the gradient is None.
    bool read_parameter(i64 t, const void* param, const void* grad) const {
        Tensor param_tensor, grad_tensor;
        if (at<const void*>(grad, 0) == layout.undefined_tensor) return true;
        const Object local = local_tensor(request.params[t], 0, t);
        grad = local_gradient(grad, t);
        if (!local || !grad) return false;
        param = local + layout.implementation;
        if (!read(layout, param, param_tensor) || !is_dense(param_tensor)) return false;
        if (!(request.allowed_dtypes[request.group[t]] >> param_tensor.dtype & 1)) return false;
        if (!read(layout, grad, grad_tensor)) return false;
        if (!same_strides(grad_tensor, param_tensor)) return false;
        const i64* const view = view_of(t);
        if ((request.by_matrix || view) && !param_tensor.contiguous) return false;
        const SeenShape seen(param_tensor, view);
        if (!seen.fits) return false;
        if (request.shape) put_shape(seen, request.shape + SHAPE_SIZE * t);
        request.elements[t] = param_tensor.elements;
        put(0, t, param_tensor);
        put(1, t, grad_tensor);
        request.dtypes[t] |= request.group_cells;
        return true;
    }

    // Returns the streams that a tensor must have, as in `Request::needed_streams`.
    u64 needed_streams(i64 t) const {
        const bool is_matrix = request.shape && request.shape[SHAPE_SIZE * t + DIMENSIONS] > 1;
        return request.needed_streams[2 * request.group[t] + is_matrix];
    }

    // Tells whether a state has the shape that its stream's axes ask for, with matching strides.
    bool fits_parameter(i64 stream, i64 t, const Tensor& state, const Tensor& param) const {
        if (stream >= request.stream_count) return state.elements == 1;
        // Codes that share bytes have no strides in torch. Python has checked their order.
        if (state.dtype == INT8 && request.code_formats[stream].bits < 8)
            return param.contiguous && same_sizes(state, param);
        const unsigned char axes = request.axes[stream];
        if (axes == LIKE) return same_strides(state, param);
        const i64 reduced_axis = axes == ROW ? 1 : 2; // from the end
        return state.contiguous
            && same_sizes(state, SeenShape(param, view_of(t)), reduced_axis);
    }

    // Returns the stream of a state's key, or -1. A loaded checkpoint has other strings as keys,
    // with the same text.
    i64 stream_of(Object key) const {
        const i64 count = request.stream_count + request.scalar_count;
        for (i64 s = 2; s < count; ++s)
            if (key == request.keys[s]) return s;
        for (i64 s = 2; s < count && type_of(key) == layout.key_type; ++s)
            if (layout.compare(key, request.key_texts[s]) == 0) return s;
        return -1;
    }

    // Objects found in the states of a block of parameters, with the parameter and stream of each.
    struct FoundStates {
        i64 count = 0;
        i64 tensor[MAX_STREAMS * BLOCK];
        i64 stream[MAX_STREAMS * BLOCK];
        Object object[MAX_STREAMS * BLOCK];
        const CodeFormat* codes[MAX_STREAMS * BLOCK]; // null for a state that is not quantized
    };

    // Adds the objects of a parameter's needed states to `found`; does not read them yet.
    void find_states(Object state, i64 t, FoundStates& found) const {
        i64 position = 0;
        Object key, value;
        const u64 needed = needed_streams(t);
        for (i64 i = 0; i < MAX_STREAMS && layout.dict_next(state, &position, &key, &value); ++i) {
            const i64 stream = stream_of(key);
            if (stream < 0 || !of_stream(needed, stream)) continue;
            prefetch(value);
            found.tensor[found.count] = t;
            found.stream[found.count] = stream;
            found.object[found.count++] = value;
        }
    }

    bool read_found_states(FoundStates& found) const {
        for (i64 i = 0; i < found.count; ++i) {
            found.codes[i] = codes_of(found.object[i], found.stream[i], found.tensor[i]);
            if (!found.codes[i])
                found.object[i] = local_tensor(found.object[i], found.stream[i], found.tensor[i]);
            if (!found.object[i]) return false;
            prefetch_implementation(found.object[i] + layout.implementation);
        }
        for (i64 i = 0; i < found.count; ++i)
            prefetch_storage(found.object[i] + layout.implementation);
        Tensor param, tensor;
        for (i64 i = 0, last_read = -1; i < found.count; ++i) {
            const i64 t = found.tensor[i], stream = found.stream[i];
            if (t != last_read && !read(layout, request.handles[last_read = t], param))
                return false;
            const CodeFormat* const codes = found.codes[i];
            const u64 dtypes = codes ? 1 << INT8
                : stream < request.stream_count ? layout.stream_dtypes : layout.scalar_dtypes;
            const Object handle = found.object[i] + layout.implementation;
            if (!read(layout, handle, tensor, dtypes, codes)) return false;
            if (!fits_parameter(stream, t, tensor, param)) return false;
            put(stream, t, tensor);
            if (stream >= request.stream_count && !request.planned) prefetch(tensor.address);
        }
        return true;
    }

    // Reads the optimizer's state, a block of parameters at a time.
    bool read_states() const {
        i64 position = 0, entry = 0;
        Object key, value;
        for (bool more = true; more;) {
            i64 count = 0, tensors[BLOCK];
            Object states[BLOCK];
            FoundStates found;
            while (count < BLOCK) {
                more = layout.dict_next(request.state, &position, &key, &value);
                if (!more) break;
                if (entry == request.entry_count) return false;
                const i64 t = request.tensor_of_entry[entry++];
                if (t < 0) continue;
                if (request.params[t] != key) return false;
                if (!request.dtypes[t]) continue;
                prefetch(value);
                tensors[count] = t;
                states[count++] = value;
            }
            for (i64 i = 0; i < count; ++i) {
                if (type_of(states[i]) != layout.dict_type) return false;
                prefetch(at<const void*>(states[i], DICT_KEYS), 3);
            }
            for (i64 i = 0; i < count; ++i) find_states(states[i], tensors[i], found);
            if (!read_found_states(found)) return false;
        }
        return entry == request.entry_count;
    }

    // Calls `visit` with the handle of every tensor that was read.
    template <class Visit>
    void for_each_handle(Visit visit) const {
        for (i64 stream = 0; stream < request.stream_count + request.scalar_count; ++stream)
            for (i64 t = 0; t < request.tensor_count; ++t)
                if (of_stream(request.dtypes[t], stream))
                    visit(request.handles[stream * request.tensor_count + t]);
    }

    // Tells autograd that parameters change, as torch's own operations do, and that gradients
    // change if they become zero. A DTensor and its local shard both change.
    void bump_versions() const {
        for (i64 t = 0; t < request.tensor_count; ++t) {
            if (!request.dtypes[t]) continue;
            const void* const handle = request.params[t] + layout.implementation;
            layout.bump_version(handle);
            if (handle != request.handles[t]) layout.bump_version(request.handles[t]);
            if (request.zeroes_gradients)
                layout.bump_version(request.handles[request.tensor_count + t]);
        }
    }

    // Tells whether every parameter with a gradient has the streams that its group's values
    // require.
    bool is_complete() const {
        for (i64 t = 0; t < request.tensor_count; ++t) {
            const u64 dtypes = request.dtypes[t], needed = dtypes ? needed_streams(t) : 0;
            if (dtypes && !needed) return false;
            if (!dtypes) continue;
            for (i64 stream = 0; stream < request.stream_count + request.scalar_count; ++stream)
                if (of_stream(needed, stream) && !of_stream(dtypes, stream)) return false;
        }
        return true;
    }

    // Runs the kernel. During a short kernel, other Python threads wait for the interpreter's lock.
    // During a long kernel they run, and may replace or drop a tensor. So the reader holds a
    // reference of its own to every tensor meanwhile. If there is no memory for the references, the
    // other threads wait during a long kernel, too.
    void call_kernel() const {
        if (!request.kernel) return;
        i64 elements = 0;
        for (i64 t = 0; t < request.tensor_count; ++t)
            if (request.dtypes[t]) elements += request.elements[t];
        if (elements <= SHORT_KERNEL_ELEMENTS)
            return request.kernel(request.table, request.threads);
        bool all_held = true;
        for_each_handle([&](void*& handle) {
            void* reference = nullptr;
            all_held &= !layout.new_handle(handle, &reference);
            handle = reference;
        });
        void* const thread = all_held ? layout.release_lock() : nullptr;
        request.kernel(request.table, request.threads);
        if (all_held) layout.take_lock(thread);
        for_each_handle([this](void*& handle) {
            if (handle) layout.delete_handle(handle);
        });
    }

    // Reads the lists of a function, which has no optimizer: one for each stream and scalar cell.
    bool read_lists() const {
        const i64 count = request.stream_count + request.scalar_count;
        for (i64 stream = 0; stream < count; ++stream)
            if (layout.list_size(request.lists[stream]) != request.tensor_count) return false;
        for (i64 t = 0; t < request.tensor_count; ++t) {
            request.dtypes[t] = 0;
            Tensor first_tensor, tensor;
            for (i64 stream = 0; stream < count; ++stream) {
                const Object object = layout.list_item(request.lists[stream], t);
                if (!is_tensor(object)) return false;
                const u64 dtypes =
                    stream < request.stream_count ? layout.stream_dtypes : layout.scalar_dtypes;
                if (!read(layout, object + layout.implementation, tensor, dtypes)) return false;
                if (stream == 0) first_tensor = tensor;
                if (stream == 0 && !is_dense(tensor)) return false;
                if (stream == 0 && request.by_matrix && !tensor.contiguous) return false;
                if (!fits_parameter(stream, t, tensor, first_tensor)) return false;
                put(stream, t, tensor);
            }
            if (request.shape) put_shape(first_tensor, request.shape + SHAPE_SIZE * t);
            request.params[t] = layout.list_item(request.lists[0], t);
            request.elements[t] = first_tensor.elements;
        }
        return true;
    }

    i64 end_of_block(i64 first) const {
        return first + BLOCK < request.tensor_count ? first + BLOCK : request.tensor_count;
    }

    bool read_gradients() const {
        if (!match_lists()) return false;
        for (i64 first = 0; first < request.tensor_count; first += BLOCK) {
            const i64 last = end_of_block(first);
            for (i64 t = last; t < end_of_block(last); ++t) prefetch(request.params[t]);
            if (!read_parameters(first, last)) return false;
        }
        return true;
    }

    // Tells whether no two gradients begin at one address, if the kernel writes zeros into them: a
    // shared gradient would be zero before the second parameter has read it. Uses a hash table
    // with Fibonacci hashing.
    bool gradients_are_separate() const {
        if (!request.zeroes_gradients) return true;
        i64 size = 64;
        while (size < 2 * request.tensor_count) size *= 2;
        const void** const addresses =
            static_cast<const void**>(__builtin_calloc(u64(size), sizeof(void*)));
        bool are_separate = addresses;
        for (i64 t = 0; are_separate && t < request.tensor_count; ++t) {
            if (!request.dtypes[t] || !request.elements[t]) continue;
            const void* const address = request.address[request.tensor_count + t];
            u64 place = reinterpret_cast<u64>(address) * 0x9E3779B97F4A7C15u >> 32;
            while (addresses[place &= u64(size) - 1] && addresses[place] != address) ++place;
            are_separate = !addresses[place];
            addresses[place] = address;
        }
        __builtin_free(addresses);
        return are_separate;
    }

    // Tells whether the tensors are those that a plan takes, if there is one.
    bool are_as_planned() const {
        if (!request.planned) return true;
        const Planned& planned = *request.planned;
        for (i64 t = 0; t < request.tensor_count; ++t) {
            if (request.dtypes[t] != planned.dtypes[t]) return false;
            if (request.dtypes[t] && request.elements[t] != planned.elements[t]) return false;
            for (i64 i = SHAPE_SIZE * t; request.shape && i < SHAPE_SIZE * (t + 1); ++i)
                if (request.dtypes[t] && request.shape[i] != planned.shape[i]) return false;
        }
        if (!planned.devices) return true;
        bool same_devices = true;
        for (i64 stream = 0; stream < request.stream_count + request.scalar_count; ++stream)
            for (i64 t = 0; t < request.tensor_count; ++t) {
                if (!of_stream(request.dtypes[t], stream)) continue;
                int device = -1;
                void* const handle = request.handles[stream * request.tensor_count + t];
                same_devices &= !layout.device_index(handle, &device);
                same_devices &= device == planned.devices[t];
            }
        return same_devices;
    }

    Answer read_step() const {
        if (!read_gradients() || !read_states() || !is_complete()) return REFUSED;
        if (!step_counts_are_valid() || !gradients_are_separate()) return REFUSED;
        return are_as_planned() ? DONE : NOT_AS_PLANNED;
    }

    bool take_step() const {
        bump_versions();
        call_kernel();
        return true;
    }
};

}  // namespace

extern "C" {

// Sizes of the structs, which must agree with ctypes.
i64 optgen_sizes[] = {sizeof(Layout), sizeof(Request)};

// Reads all tensors of a step, and takes it if `takes_step` and the answer is DONE. After any other
// answer Python must read the tensors itself, or try another plan. Otherwise nothing is changed. The
// caller holds the interpreter's lock. There is one function for both, so that the compiler inlines
// what it calls.
int optgen_read_step(const Request* request, int takes_step) {
    const Reader reader{{*request, *request->layout}};
    const Answer answer = reader.read_step();
    if (takes_step && answer == DONE) reader.take_step();
    return answer;
}

// Reads parameters and gradients only, for a first step, whose states do not exist yet.
int optgen_read_gradients(const Request* request) {
    const Reader reader{{*request, *request->layout}};
    return reader.read_gradients();
}

// Takes a step for a function: `lists` has a list of tensors for each stream. Answers as
// `optgen_read_step` does.
int optgen_read_lists_and_step(const Request* request) {
    const Reader reader{{*request, *request->layout}};
    if (!reader.read_lists()) return REFUSED;
    if (!reader.are_as_planned()) return NOT_AS_PLANNED;
    reader.take_step();
    return DONE;
}

}
