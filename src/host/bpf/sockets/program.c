// The programs that the kernel runs for each packet of the pods' sockets.
//
// `ingress.bin` and `egress.bin` are the instructions that Debian 12's clang makes of this file,
// for a little-endian machine. The test `tests/network/program.rs` has the compiler's arguments,
// compares the instructions, and writes them anew under PINFOLD_RECORD=1.
//
// A sent packet gives access to the TCP state of its socket. The programs therefore need no second
// attach point, no BTF and no socket option. Connections older than the programs are counted, too.
// The tracepoint for retransmitted segments is no alternative. A tracepoint's program would see no
// other segments and no cgroup, and must be under the GPL. A sockops program has no cgroup, and sees
// only connections made after the program was attached.

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

// Placeholders, replaced by `program.rs` when a program is loaded: a map's descriptor, and the
// depth of the tree's cgroup below the root cgroup. A map's placeholder fills an immediate operand
// of 64 bits, as the instruction for a map requires.
#define COUNTS ((void *)0x706d0001706d0001)
#define TIMERS ((void *)0x706d0002706d0002)
#define TREE_DEPTH 0x706d0010

// The size of IPv6's hop-by-hop options. Linux writes the options only to hold the length of a
// packet that is too long for IPv6's 16-bit length field. The options then take exactly 8 bytes,
// and no other extension header follows.
#define HOP_BY_HOP_SIZE 8

// The return value by which a program lets a packet pass.
#define PASS 1

// The kernel's helpers, by number.
static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const map_update)(void *map, const void *key, const void *value,
                                __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static long (*const load_bytes)(const struct __sk_buff *packet, __u32 offset, void *to,
                                __u32 size) = (void *)BPF_FUNC_skb_load_bytes;
static __u64 (*const socket_cookie)(struct __sk_buff *packet) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*const ancestor_cgroup_id)(struct __sk_buff *packet,
                                         int level) = (void *)BPF_FUNC_skb_ancestor_cgroup_id;
static struct bpf_tcp_sock *(*const tcp_sock)(struct bpf_sock *socket) = (void *)BPF_FUNC_tcp_sock;

// The key of a count: the cgroup directly below the tree, and the cgroup a level deeper. Packets
// that find no free entry are counted under zeros.
struct key {
	__u64 outer, inner;
};

// The value of a count. Each CPU has a separate copy. `sockets.rs` reads the fields in this order.
struct counts {
	__u64 received_bytes, received_packets, sent_bytes, sent_packets;
	__u64 sent_segments, retransmitted_segments, timeouts;
};

// A socket's state at its last counted timeouts, by the cookie of the socket.
struct timer {
	__u64 unacknowledged; // The first sequence number that the peer has not acknowledged.
	__u64 timeouts;       // The timeouts since the peer's last acknowledgment.
};

// The addition is atomic, although each CPU has its own copy of the entry. An interrupt on the same
// CPU may receive or send a packet in the middle of this program.
static __always_inline void add(__u64 *count, __u64 number)
{
	__sync_fetch_and_add(count, number);
}

// The number of segments in a packet. The kernel may report 0 for a packet that was never merged and
// will not be segmented.
static __always_inline __u64 segments_of(const struct __sk_buff *packet)
{
	return packet->gso_segs ? packet->gso_segs : 1;
}

// The counts of the packet's pod or container. The result is 0 only if the map lacks even the
// entry for packets without a free entry.
static __always_inline struct counts *find_counts(struct __sk_buff *packet)
{
	struct key key = {
		.outer = ancestor_cgroup_id(packet, TREE_DEPTH + 1),
		.inner = ancestor_cgroup_id(packet, TREE_DEPTH + 2),
	};
	struct counts *found = map_lookup(COUNTS, &key);
	if (found)
		return found;
	struct counts zeros = {};
	// Another CPU may have made the entry meanwhile. The counts in that entry must stay.
	map_update(COUNTS, &key, &zeros, BPF_NOEXIST);
	found = map_lookup(COUNTS, &key);
	if (found)
		return found;
	key.outer = key.inner = 0;
	return map_lookup(COUNTS, &key);
}

// Whether a TCP packet repeats sequence numbers that were sent before. `next` is the socket's
// `snd_nxt`, the sequence number of the next new byte. The kernel advances `snd_nxt` after a new
// segment has passed this program. A packet that ends at or before `snd_nxt` is therefore
// retransmitted; the kernel's own counter `OutSegs` follows the same rule.
static __always_inline int is_retransmitted(const struct __sk_buff *packet, __u32 next)
{
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	struct ipv6_opt_hdr options;
	struct tcphdr tcp;
	__u32 start;
	__u8 protocol;

	// The fields that are read lie in the first 20 bytes with both versions of IP.
	if (load_bytes(packet, 0, &ip, sizeof(ip.v4)))
		return 0;
	if (ip.v4.version == 4) {
		start = 4 * ip.v4.ihl;
		protocol = ip.v4.protocol;
	} else {
		start = sizeof(ip.v6);
		protocol = ip.v6.nexthdr;
		if (protocol == IPPROTO_HOPOPTS) {
			if (load_bytes(packet, start, &options, sizeof(options)))
				return 0;
			start += HOP_BY_HOP_SIZE;
			protocol = options.nexthdr;
		}
	}
	if (protocol != IPPROTO_TCP || load_bytes(packet, start, &tcp, sizeof(tcp)))
		return 0;
	// SYN and FIN take a sequence number each, as a byte of payload does. A bare acknowledgment
	// takes no sequence number, and is never retransmitted.
	__u32 numbers = packet->len - start - 4 * tcp.doff + tcp.syn + tcp.fin;
	__u32 end = __builtin_bswap32(tcp.seq) + numbers;
	// Sequence numbers wrap around, so the sign of the difference decides.
	return numbers && (__s32)(end - next) <= 0;
}

// Counts the expirations of the retransmission timer since the last call for the same socket.
// The kernel increments `icsk_retransmits` before the timer retransmits a segment, and sets it
// to 0 when the peer acknowledges data. The map of timers lets each expiration count once.
static __always_inline void count_timeouts(struct __sk_buff *packet, struct timer now,
                                           struct counts *counts)
{
	if (!now.timeouts)
		return;
	__u64 cookie = socket_cookie(packet);
	struct timer *last = map_lookup(TIMERS, &cookie);
	__u64 more = now.timeouts;
	if (!last)
		more = 1; // The first timeout seen. Timeouts before the program was attached do not count.
	else if (last->unacknowledged == now.unacknowledged && last->timeouts <= now.timeouts)
		more -= last->timeouts;
	if (!more)
		return;
	add(&counts->timeouts, more);
	map_update(TIMERS, &cookie, &now, BPF_ANY);
}

// Counts the segments of a sent packet, if the packet belongs to a TCP socket.
static __always_inline void count_segments(struct __sk_buff *packet, struct counts *counts)
{
	struct bpf_sock *socket = packet->sk;
	struct bpf_tcp_sock *tcp = socket ? tcp_sock(socket) : 0;
	if (!tcp)
		return;
	// The kernel increments `total_retrans` before a retransmitted segment leaves. Most sockets
	// never retransmit, and their headers need not be read.
	if (tcp->total_retrans) {
		struct timer now = {tcp->snd_una, tcp->icsk_retransmits};
		if (is_retransmitted(packet, tcp->snd_nxt)) {
			add(&counts->retransmitted_segments, segments_of(packet));
			count_timeouts(packet, now, counts);
			return;
		}
	}
	add(&counts->sent_segments, segments_of(packet));
}

// A packet received by a socket of the tree.
__attribute__((section("ingress"))) int receive(struct __sk_buff *packet)
{
	struct counts *counts = find_counts(packet);
	if (counts) {
		add(&counts->received_bytes, packet->len);
		add(&counts->received_packets, segments_of(packet));
	}
	return PASS;
}

// A packet sent by a socket of the tree.
__attribute__((section("egress"))) int send(struct __sk_buff *packet)
{
	struct counts *counts = find_counts(packet);
	if (counts) {
		add(&counts->sent_bytes, packet->len);
		add(&counts->sent_packets, segments_of(packet));
		count_segments(packet, counts);
	}
	return PASS;
}
