// BLAKE3 (unkeyed, 32 bytes out) of many messages at once.
//
// A message is cut into leaves of 1024 bytes; a group is GROUP_LEAVES of them, an aligned and therefore complete
// subtree (only the last one of a message may be smaller). The first kernel hashes one leaf per thread and folds each
// group to one chaining value; the second folds a message's groups to its digest. Folding means: join neighbours,
// carry an odd last one up unchanged. That makes exactly BLAKE3's tree, whose left subtrees are the largest
// powers of two that leave something to the right.

namespace tender {
namespace blake3 {

enum : u32 {
    LEAF_BYTES = 1024,
    BLOCK_BYTES = 64,
    // Also the threads of a block of either kernel.
    GROUP_LEAVES = 128,

    CHUNK_START = 1,
    CHUNK_END = 2,
    PARENT = 4,
    ROOT = 8,
};

#define TENDER_BLAKE3_IV \
    0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au, 0x510E527Fu, 0x9B05688Cu, 0x1F83D9ABu, 0x5BE0CD19u

// A chaining value, and at the end the digest.
struct alignas(16) Value {
    u32 word[8];
};

__device__ inline u32 rotate_right(u32 word, u32 bits) {
    return (word >> bits) | (word << (32 - bits));
}

__device__ inline void mix(u32& a, u32& b, u32& c, u32& d, u32 first, u32 second) {
    a += b + first;
    d = rotate_right(d ^ a, 16);
    c += d;
    b = rotate_right(b ^ c, 12);
    a += b + second;
    d = rotate_right(d ^ a, 8);
    c += d;
    b = rotate_right(b ^ c, 7);
}

__device__ inline void compress(Value& value, const u32 (&block)[16], u64 counter, u32 bytes, u32 flags) {
    const u32 iv[8] = {TENDER_BLAKE3_IV};
    u32 s[16];
    u32 m[16];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        s[i] = value.word[i];
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        s[8 + i] = iv[i];
    }
    s[12] = static_cast<u32>(counter);
    s[13] = static_cast<u32>(counter >> 32);
    s[14] = bytes;
    s[15] = flags;
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        m[i] = block[i];
    }
#pragma unroll
    for (u32 round = 0; round < 7; round++) {
        mix(s[0], s[4], s[8], s[12], m[0], m[1]);
        mix(s[1], s[5], s[9], s[13], m[2], m[3]);
        mix(s[2], s[6], s[10], s[14], m[4], m[5]);
        mix(s[3], s[7], s[11], s[15], m[6], m[7]);
        mix(s[0], s[5], s[10], s[15], m[8], m[9]);
        mix(s[1], s[6], s[11], s[12], m[10], m[11]);
        mix(s[2], s[7], s[8], s[13], m[12], m[13]);
        mix(s[3], s[4], s[9], s[14], m[14], m[15]);
        // The words' order in the next round; unrolled, this moves nothing.
        const u32 from[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
        u32 next[16];
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            next[i] = m[from[i]];
        }
#pragma unroll
        for (u32 i = 0; i < 16; i++) {
            m[i] = next[i];
        }
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        value.word[i] = s[i] ^ s[8 + i];
    }
}

// Up to 64 bytes as words, zeros behind them.
__device__ inline void read_block(u32 (&block)[16], u64 address, u32 bytes) {
    if (bytes == BLOCK_BYTES && address % 16 == 0) {
        const uint4* from = reinterpret_cast<const uint4*>(address);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            uint4 four = __ldca(from + i);
            block[4 * i] = four.x;
            block[4 * i + 1] = four.y;
            block[4 * i + 2] = four.z;
            block[4 * i + 3] = four.w;
        }
        return;
    }
    const u8* from = reinterpret_cast<const u8*>(address);
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u32 word = 0;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (4 * i + j < bytes) {
                word |= static_cast<u32>(__ldca(from + 4 * i + j)) << (8 * j);
            }
        }
        block[i] = word;
    }
}

// One leaf's value; `root` if it is all there is.
__device__ inline Value hash_leaf(u64 address, u32 bytes, u64 index, bool root) {
    Value value = {{TENDER_BLAKE3_IV}};
    u32 flags = CHUNK_START;
    u32 done = 0;
    // A message of no bytes has one block of no bytes.
    do {
        u32 here = bytes - done < BLOCK_BYTES ? bytes - done : u32(BLOCK_BYTES);
        u32 block[16];
        read_block(block, address + done, here);
        done += here;
        if (done == bytes) {
            flags |= CHUNK_END | (root ? u32(ROOT) : 0);
        }
        compress(value, block, index, here, flags);
        flags = 0;
    } while (done < bytes);
    return value;
}

__device__ inline Value join(const Value& left, const Value& right, bool root) {
    u32 block[16];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        block[i] = left.word[i];
        block[8 + i] = right.word[i];
    }
    Value value = {{TENDER_BLAKE3_IV}};
    compress(value, block, 0, BLOCK_BYTES, PARENT | (root ? u32(ROOT) : 0));
    return value;
}

// Folds n values to the first of them, in place; all threads of the block call it together. The last join is the
// root's if `root` says so.
__device__ inline void fold(Value* values, u64 n, bool root) {
    while (n > 1) {
        u64 next = (n + 1) / 2;
        for (u64 base = 0; base < next; base += blockDim.x) {
            u64 at = base + threadIdx.x;
            Value value;
            if (at < next) {
                value = 2 * at + 1 < n ? join(values[2 * at], values[2 * at + 1], root && n == 2) : values[2 * at];
            }
            // What is written now was read by this round or an earlier one.
            __syncthreads();
            if (at < next) {
                values[at] = value;
            }
            __syncthreads();
        }
        n = next;
    }
}

__device__ inline u64 groups_of(u64 bytes) {
    u64 group_bytes = static_cast<u64>(GROUP_LEAVES) * LEAF_BYTES;
    return bytes <= group_bytes ? 1 : (bytes - 1) / group_bytes + 1;
}

} // namespace blake3
} // namespace tender

// A block of threads for each group of leaves. Its value goes to `values`, or, if it is the message's only one, to
// `digests`: 32 bytes for each message.
extern "C" __global__ void __launch_bounds__(128)
    tender_blake3_groups(u64 messages, u64 n_messages, u64 n_groups, u64 values, u64 digests) {
    using namespace tender;
    using namespace tender::blake3;
    __shared__ Value shared[GROUP_LEAVES];
    const Message* all = reinterpret_cast<const Message*>(messages);
    for (u64 group = blockIdx.x; group < n_groups; group += gridDim.x) {
        u64 nth = find_last<Message, &Message::first_group>(all, n_messages, group);
        Message message = all[nth];
        bool only = groups_of(message.bytes) == 1;
        u64 first_leaf = (group - message.first_group) * GROUP_LEAVES;
        u64 rest = message.bytes - first_leaf * LEAF_BYTES;
        u64 leaves = rest == 0 ? 1 : (rest - 1) / LEAF_BYTES + 1;
        leaves = leaves < GROUP_LEAVES ? leaves : u64(GROUP_LEAVES);
        if (threadIdx.x < leaves) {
            u64 skipped = static_cast<u64>(threadIdx.x) * LEAF_BYTES;
            u64 bytes = rest - skipped < LEAF_BYTES ? rest - skipped : u64(LEAF_BYTES);
            u64 leaf = first_leaf + threadIdx.x;
            shared[threadIdx.x] = hash_leaf(message.address + leaf * LEAF_BYTES, static_cast<u32>(bytes), leaf,
                                            only && leaves == 1);
        }
        __syncthreads();
        fold(shared, leaves, only);
        if (threadIdx.x == 0) {
            if (only) {
                reinterpret_cast<Value*>(digests)[nth] = shared[0];
            } else {
                reinterpret_cast<Value*>(values)[group] = shared[0];
            }
        }
        // The next group's leaves must not overtake this read.
        __syncthreads();
    }
}

// A block of threads for each message that has several groups.
extern "C" __global__ void __launch_bounds__(128)
    tender_blake3_roots(u64 messages, u64 n_messages, u64 values, u64 digests) {
    using namespace tender;
    using namespace tender::blake3;
    const Message* all = reinterpret_cast<const Message*>(messages);
    for (u64 nth = blockIdx.x; nth < n_messages; nth += gridDim.x) {
        u64 groups = groups_of(all[nth].bytes);
        if (groups == 1) {
            continue;
        }
        Value* mine = reinterpret_cast<Value*>(values) + all[nth].first_group;
        fold(mine, groups, true);
        if (threadIdx.x == 0) {
            reinterpret_cast<Value*>(digests)[nth] = mine[0];
        }
    }
}
