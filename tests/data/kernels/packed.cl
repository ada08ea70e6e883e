// packed, GROUP = 8
static inline float2 unpack_half2(uint bits) {
    return vload_half2(0, (const __private half *)&bits);
}
static inline uint pack_half2(float2 values) {
    uint bits;
    vstore_half2_rte(values, 0, (__private half *)&bits);
    return bits;
}
typedef struct {
    uint words_at;
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void packed(
    __global const uint *words,
    __global float *out,
    __constant const Params *params) {
    words += params->words_at;
    out += params->out_at;
    const uint3 global_id = (uint3)((uint)get_global_id(0), (uint)get_global_id(1), (uint)get_global_id(2));
    const uint i = global_id.x;
    const uint word = words[i];
    const float2 pair = unpack_half2(word);
    const float value = (float)((words[i >> 2u] >> ((i & 3u) << 3u)) & 255u);
    const uint offset = 2u * i;
    out[6u * i] = value + unpack_half2((words[offset >> 2u] >> ((offset & 2u) << 3u)) & 65535u).x;
    const uint offset_1 = i + 1u;
    const uint at = offset_1 >> 2u;
    const uint shift = (offset_1 & 3u) << 3u;
    const uint low = words[at] >> shift;
    uint value_1 = 0u;
    if (shift == 0u) {
        value_1 = low;
    } else {
        value_1 = low | (words[at + 1u] << (32u - shift));
    }
    out[6u * i + 1u] = (float)(value_1 >> 12u);
    const uint low_1 = words[0u] >> 16u;
    const uint b = low_1 | (words[1u] << 16u);
    const int4 products = (as_int4(((uint4)(word << 24u, word << 16u, word << 8u, word))) >> ((uint4)(24u))) * (as_int4(((uint4)(b << 24u, b << 16u, b << 8u, b))) >> ((uint4)(24u)));
    out[6u * i + 2u] = (float)(-7 + products.x + products.y + products.z + products.w);
    out[6u * i + 3u] = pair.x - pair.y;
    out[6u * i + 4u] = as_float(pack_half2(pair) ^ 0x80008000u);
    out[6u * i + 5u] = (float)((as_int(word) >> 9u) ^ 5);
}
