// Reads the tensors of a step straight from the objects that Python and torch keep: for every
// parameter its gradient and state, their addresses, types and layouts. In Python this would take
// ten times as long. Where things lie is found out, and checked, by object_layout.py.
// The kernel is called from here too: no other Python thread can replace a tensor in between.

// It calls more than it computes: what more than -O1 would do takes a third of the build.
#ifndef __clang__
#pragma GCC optimize("O1")
#endif

#include "optgen/runtime/fused_cpu/reader/tensor_request.h"

namespace {

// Most of the time goes into waiting for memory: a tensor is spread over several places, each known
// only from the one before. So a block of tensors is followed at once, place by place, and every
// place is fetched into the cache while the others are looked at.
constexpr i64 BLOCK = 32;

// A kernel for at most so many elements is short: it takes a millisecond or two.
constexpr i64 SHORT = 1 << 20;

struct Reader : Streams {
    bool lists() const {
        i64 t = 0;
        for (i64 g = 0; g < request.groups; ++g) {
            const i64 size = layout.list_size(request.lists[g]);
            if (size > request.tensors - t) return false;
            for (i64 i = 0; i < size; ++i, ++t) {
                if (layout.list_item(request.lists[g], i) != request.params[t]) return false;
                request.group[t] = int(g);
                request.types[t] = 0;
            }
        }
        return t == request.tensors;
    }

    bool parameters(i64 first, i64 last) const {
        const void *params[BLOCK], *grads[BLOCK];
        const i64 count = last - first;
        for (i64 i = 0; i < count; ++i) {
            const Object type = type_of(request.params[first + i]);
            if (!is_tensor(request.params[first + i]) && type != layout.shared) return false;
            params[i] = request.params[first + i] + layout.implementation;
            fetch_implementation(params[i]);
        }
        for (i64 i = 0; i < count; ++i) {
            fetch_storage(params[i]);
            fetch(at<const void*>(at<const void*>(params[i], 0), AUTOGRAD), 2);
            fetch(at<const void*>(at<const void*>(params[i], 0), VERSION));
        }
        for (i64 i = 0; i < count; ++i) grads[i] = layout.grad(at<const void*>(params[i], 0));
        for (i64 i = 0; i < count; ++i) fetch_implementation(grads[i]);
        for (i64 i = 0; i < count; ++i) fetch_storage(grads[i]);
        for (i64 i = 0; i < count; ++i)
            if (!parameter(first + i, params[i], grads[i])) return false;
        return true;
    }

    bool parameter(i64 t, const void* param, const void* grad) const {
        Tensor read_param, read_grad;
        if (at<const void*>(grad, 0) == layout.undefined) return true;
        const Object memory = held(request.params[t], 0, t);
        grad = held_gradient(grad, t);
        if (!memory || !grad) return false;
        param = memory + layout.implementation;
        if (!read(layout, param, read_param) || !is_dense(layout, read_param)) return false;
        if (!(request.allowed[request.group[t]] >> read_param.type & 1)) return false;
        if (!read(layout, grad, read_grad)) return false;
        if (!same_walk(layout, read_grad, read_param)) return false;
        if (request.by_matrix && !read_param.contiguous) return false;
        if (request.shape) put_shape(Shape(layout, read_param), request.shape + SHAPE * t);
        request.elements[t] = read_param.elements;
        put(0, t, read_param);
        put(1, t, read_grad);
        return true;
    }

    u64 needed(i64 t) const {
        const bool matrix = request.shape && request.shape[SHAPE * t + DIMENSIONS] > 1;
        return request.needed[2 * request.group[t] + matrix];
    }

    // Whether a state has the elements that its parameter asks for, in the same places.
    bool belongs(i64 stream, const Tensor& state, const Tensor& param) const {
        if (stream >= request.streams) return state.elements == 1;
        const unsigned char axes = request.axes[stream];
        if (axes == LIKE) return same_walk(layout, state, param);
        const i64 summed = axes == ROW ? 1 : 2;
        return state.contiguous
            && same_sizes(Shape(layout, state), Shape(layout, param), summed);
    }

    // The stream a key of a state belongs to, or -1. A loaded checkpoint has its own equal strings.
    i64 stream_of(Object key) const {
        const i64 streams = request.streams + request.scalars;
        for (i64 s = 2; s < streams; ++s)
            if (key == request.keys[s]) return s;
        for (i64 s = 2; s < streams && type_of(key) == layout.text; ++s)
            if (layout.compare(key, request.names[s]) == 0) return s;
        return -1;
    }

    // Tensors found in states, to be looked at together.
    struct Found {
        i64 count = 0;
        i64 tensor[16 * BLOCK];
        i64 stream[16 * BLOCK];
        Object object[16 * BLOCK];
    };

    void search(Object state, i64 t, Found& found) const {
        i64 position = 0;
        Object key, value;
        const u64 wanted = needed(t);
        for (i64 seen = 0; seen < 16 && layout.dict_next(state, &position, &key, &value); ++seen) {
            const i64 stream = stream_of(key);
            if (stream < 0 || !of_stream(wanted, stream)) continue;
            fetch(value);
            found.tensor[found.count] = t;
            found.stream[found.count] = stream;
            found.object[found.count++] = value;
        }
    }

    bool read_found(Found& found) const {
        for (i64 i = 0; i < found.count; ++i) {
            found.object[i] = held(found.object[i], found.stream[i], found.tensor[i]);
            if (!found.object[i]) return false;
            fetch_implementation(found.object[i] + layout.implementation);
        }
        for (i64 i = 0; i < found.count; ++i)
            fetch_storage(found.object[i] + layout.implementation);
        Tensor like, tensor;
        for (i64 i = 0, of = -1; i < found.count; ++i) {
            const i64 t = found.tensor[i], stream = found.stream[i];
            if (t != of && !read(layout, request.handles[of = t], like))
                return false;
            const u64 types = stream < request.streams ? layout.types : layout.numbers;
            if (!read(layout, found.object[i] + layout.implementation, tensor, types)) return false;
            if (!belongs(stream, tensor, like)) return false;
            put(stream, t, tensor);
            if (stream >= request.streams) fetch(tensor.address);
        }
        return true;
    }

    bool states() const {
        i64 position = 0, entry = 0;
        Object key, value;
        for (bool more = true; more;) {
            i64 count = 0, tensors[BLOCK];
            Object states[BLOCK];
            Found found;
            while (count < BLOCK) {
                more = layout.dict_next(request.state, &position, &key, &value);
                if (!more) break;
                if (entry == request.entries) return false;
                const i64 t = request.order[entry++];
                if (t < 0) continue;
                if (request.params[t] != key) return false;
                if (!request.types[t]) continue;
                fetch(value);
                tensors[count] = t;
                states[count++] = value;
            }
            for (i64 i = 0; i < count; ++i) {
                if (type_of(states[i]) != layout.dict) return false;
                fetch(at<const void*>(states[i], DICT_KEYS), 3);
            }
            for (i64 i = 0; i < count; ++i) search(states[i], tensors[i], found);
            if (!read_found(found)) return false;
        }
        return entry == request.entries;
    }

    // Calls what with the handle of every tensor that was read.
    template <class What>
    void each(What what) const {
        for (i64 stream = 0; stream < request.streams + request.scalars; ++stream)
            for (i64 t = 0; t < request.tensors; ++t)
                if (of_stream(request.types[t], stream))
                    what(request.handles[stream * request.tensors + t]);
    }

    // Autograd must see that parameters change, as it does when torch's own operations change them:
    // a shared one, and its memory.
    void bump_versions() const {
        for (i64 t = 0; t < request.tensors; ++t) {
            if (!request.types[t]) continue;
            const void* const handle = request.params[t] + layout.implementation;
            layout.bump_version(handle);
            if (handle != request.handles[t]) layout.bump_version(request.handles[t]);
        }
    }

    // Whether every tensor with a gradient has the streams its group asks for.
    bool complete() const {
        for (i64 t = 0; t < request.tensors; ++t) {
            const u64 types = request.types[t], wanted = types ? needed(t) : 0;
            if (types && !wanted) return false;
            for (i64 stream = 0; types && stream < request.streams + request.scalars; ++stream)
                if (of_stream(wanted, stream) && !of_stream(types, stream)) return false;
        }
        return true;
    }

    // Other Python threads wait for a short kernel. During a long one they run, and may replace or
    // drop any tensor: then it gets a second owner for as long. Without memory for that they wait.
    void call_kernel() const {
        i64 elements = 0;
        for (i64 t = 0; t < request.tensors; ++t)
            if (request.types[t]) elements += request.elements[t];
        if (elements <= SHORT) return request.kernel(request.table, request.threads);
        bool owned = true;
        each([&](void*& handle) {
            void* owner = nullptr;
            owned &= !layout.new_handle(handle, &owner);
            handle = owner;
        });
        void* const thread = owned ? layout.release_lock() : nullptr;
        request.kernel(request.table, request.threads);
        if (owned) layout.take_lock(thread);
        each([this](void*& handle) {
            if (handle) layout.delete_handle(handle);
        });
    }

    // The lists of a function, which has no optimizer: one for each stream.
    bool columns() const {
        for (i64 stream = 0; stream < request.streams; ++stream)
            if (layout.list_size(request.lists[stream]) != request.tensors) return false;
        for (i64 t = 0; t < request.tensors; ++t) {
            request.types[t] = 0;
            Tensor first, tensor;
            for (i64 stream = 0; stream < request.streams; ++stream) {
                const Object object = layout.list_item(request.lists[stream], t);
                if (!is_tensor(object)) return false;
                if (!read(layout, object + layout.implementation, tensor)) return false;
                if (stream == 0) first = tensor;
                if (stream == 0 && !is_dense(layout, first)) return false;
                if (!same_walk(layout, tensor, first)) return false;
                put(stream, t, tensor);
            }
            request.params[t] = layout.list_item(request.lists[0], t);
            request.elements[t] = first.elements;
        }
        return true;
    }

    i64 end_of_block(i64 first) const {
        return first + BLOCK < request.tensors ? first + BLOCK : request.tensors;
    }

    bool look() const {
        if (!lists()) return false;
        for (i64 first = 0; first < request.tensors; first += BLOCK) {
            const i64 last = end_of_block(first);
            for (i64 t = last; t < end_of_block(last); ++t) fetch(request.params[t]);
            if (!parameters(first, last)) return false;
        }
        return true;
    }

    bool run() const { return look() && states() && complete() && counts() && take_step(); }

    bool take_step() const {
        bump_versions();
        call_kernel();
        return true;
    }
};

}  // namespace

extern "C" {

// What ctypes must have made of the two.
i64 optgen_sizes[] = {sizeof(Layout), sizeof(Request)};

// To be called with the interpreter's lock held. 1 if everything was read and the step was taken; 0
// if something is not as expected: then nothing was changed, and Python must look itself.
int optgen_repeat(const Request* request) {
    const Reader reader{{*request, *request->layout}};
    return reader.run();
}

// Reads the parameters and gradients only, of an optimizer that has no states yet.
int optgen_look(const Request* request) {
    const Reader reader{{*request, *request->layout}};
    return reader.look();
}

// The same as a step for the lists of a function: `lists` has one for each stream.
int optgen_update(const Request* request) {
    const Reader reader{{*request, *request->layout}};
    return reader.columns() && reader.take_step();
}

}
