//go:build !nordma

#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Completions with an error do not say what they are of, so each work request goes to the device under a
// token of ours, and its own id waits in a ring of the queue pair:
//   receive? 1 bit | generation 11 | place in the completion queue's table 20 | position in the ring 32
// The rings also bound a queue to what was asked for, where a device rounds up.
#define TOKEN_RECV (1ull << 63)
#define GEN_MASK 0x7ffu
#define SLOT_MASK 0xfffffu
#define CHAIN 64
#define MAX_SGE 4 // verbs.MaxSGE
#define KERNEL_WITH_INVALIDATE (1u << 2)

struct place {
	struct hca_qp *qp;
	uint32_t gen;
};

struct hca_cq {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	pthread_mutex_t mu; // table and what is read through it
	struct place *table;
	uint32_t size;
	uint32_t wanted;       // entries that all queue pairs may need
	unsigned invalidated;   // the flag of a completion that took a key away
	int forgets;            // the device may forget to flush what it was given
	struct hca_qp *flushed; // queue pairs with work that we flush ourselves
};

struct sent {
	uint64_t id;
	uint8_t op;
};

struct hca_qp {
	struct ibv_qp *qp;
	struct hca_cq *cq;
	uint64_t token; // generation and place
	uint32_t num;
	uint32_t send_max, recv_max, send_mask, recv_mask;
	struct sent *sends;
	uint64_t *recvs;
	uint32_t send_head, send_tail;  // posted; completed (atomic)
	uint32_t send_given, send_last; // given to the device; behind the last of those that is signalled
	uint32_t recv_head, recv_tail, recv_given;
	pthread_mutex_t mu; // posting against going to error
	int ready, error, settled, listed;
	struct hca_qp *next; // in cq->flushed
};

static uint32_t pow2(uint32_t n)
{
	uint32_t p = 1;
	while (p < n)
		p <<= 1;
	return p;
}

struct hca_cq *hca_cq_open(struct ibv_context *ctx, int entries)
{
	struct hca_cq *cq = calloc(1, sizeof *cq);
	if (!cq)
		return NULL;
	pthread_mutex_init(&cq->mu, NULL);
	cq->channel = ibv_create_comp_channel(ctx);
	if (!cq->channel)
		goto failed;
	if (hca_nonblock(cq->channel->fd))
		goto no_cq;
	struct ibv_device_attr attr;
	if (ibv_query_device(ctx, &attr))
		goto no_cq;
	// rxe hands the kernel's flags through, where this one is another.
	cq->invalidated = attr.vendor_id == HCA_RXE ? KERNEL_WITH_INVALIDATE : IBV_WC_WITH_INV;
	// siw does where both sides close at once; in error it has stopped, so nothing of it can come later.
	cq->forgets = attr.vendor_id == HCA_SIW;
	cq->cq = ibv_create_cq(ctx, entries, NULL, cq->channel, 0);
	if (!cq->cq)
		goto no_cq;
	return cq;
no_cq:;
	int err = errno;
	ibv_destroy_comp_channel(cq->channel);
	errno = err;
failed:
	free(cq);
	return NULL;
}

int hca_cq_fd(struct hca_cq *cq) { return cq->channel->fd; }

// drain takes the notices that wait in the channel, and acknowledges them.
static void drain(struct hca_cq *cq)
{
	struct ibv_cq *which;
	void *context;
	unsigned n = 0;
	while (!ibv_get_cq_event(cq->channel, &which, &context))
		n++;
	if (n)
		ibv_ack_cq_events(cq->cq, n);
}

int hca_cq_close(struct hca_cq *cq)
{
	drain(cq);
	int err = ibv_destroy_cq(cq->cq);
	if (err)
		return err;
	ibv_destroy_comp_channel(cq->channel);
	pthread_mutex_destroy(&cq->mu);
	free(cq->table);
	free(cq);
	return 0;
}

// hca_cq_grow makes room for more entries where the device can; where it cannot, the queue stays as it is.
void hca_cq_grow(struct hca_cq *cq, uint32_t more, uint32_t limit)
{
	pthread_mutex_lock(&cq->mu);
	cq->wanted += more;
	uint32_t want = cq->wanted;
	if (limit && want > limit)
		want = limit;
	if (want > (uint32_t)cq->cq->cqe)
		ibv_resize_cq(cq->cq, (int)want);
	pthread_mutex_unlock(&cq->mu);
}

static uint8_t status_of(enum ibv_wc_status s)
{
	switch (s) {
	case IBV_WC_SUCCESS: return 0;
	case IBV_WC_WR_FLUSH_ERR: return 1;
	case IBV_WC_LOC_LEN_ERR: return 2;
	case IBV_WC_LOC_PROT_ERR:
	case IBV_WC_LOC_ACCESS_ERR: return 3;
	case IBV_WC_REM_ACCESS_ERR: return 4;
	case IBV_WC_REM_OP_ERR:
	case IBV_WC_REM_INV_REQ_ERR: return 5;
	case IBV_WC_RETRY_EXC_ERR: return 6;
	case IBV_WC_RNR_RETRY_EXC_ERR: return 7;
	case IBV_WC_MW_BIND_ERR: return 8;
	default: return 9;
	}
}

enum { OP_SEND, OP_SEND_INV, OP_WRITE, OP_READ, OP_BIND, OP_LOCAL_INV, OP_RECV };

// flush completes what the device does not: work that was posted in error, after that which the device has.
static int flush(struct hca_cq *cq, struct hca_wc *out, int n, int max, int *failed)
{
	for (struct hca_qp **p = &cq->flushed; *p && n < max;) {
		struct hca_qp *qp = *p;
		pthread_mutex_lock(&qp->mu);
		uint32_t recv = qp->recv_tail, send = qp->send_tail;
		if (qp->settled || (int32_t)(recv - qp->recv_given) >= 0)
			for (; recv != qp->recv_head && n < max; recv++, n++)
				out[n] = (struct hca_wc){.id = qp->recvs[recv & qp->recv_mask], .op = OP_RECV, .status = 1, .qp_num = qp->num};
		if (qp->settled || (int32_t)(send - qp->send_last) >= 0) {
			if (!qp->settled && (int32_t)(send - qp->send_given) < 0)
				send = qp->send_given; // those were carried out without a word
			for (; send != qp->send_head && n < max; send++, n++)
				out[n] = (struct hca_wc){.id = qp->sends[send & qp->send_mask].id, .op = qp->sends[send & qp->send_mask].op, .status = 1, .qp_num = qp->num};
		}
		*failed += recv - qp->recv_tail || send - qp->send_tail;
		__atomic_store_n(&qp->recv_tail, recv, __ATOMIC_RELEASE);
		__atomic_store_n(&qp->send_tail, send, __ATOMIC_RELEASE);
		int done = recv == qp->recv_head && send == qp->send_head;
		if (done)
			qp->listed = 0;
		pthread_mutex_unlock(&qp->mu);
		if (done)
			*p = qp->next;
		else
			p = &qp->next;
	}
	return n;
}

// list puts qp where flush looks.
static void list(struct hca_qp *qp)
{
	struct hca_cq *cq = qp->cq;
	pthread_mutex_lock(&cq->mu);
	if (!qp->listed) {
		qp->listed = 1;
		qp->next = cq->flushed;
		cq->flushed = qp;
	}
	pthread_mutex_unlock(&cq->mu);
}

int hca_cq_poll(struct hca_cq *cq, struct hca_wc *out, int max, int *failed)
{
	struct ibv_wc wcs[32];
	int n = 0, dry = 0;
	*failed = 0;
	pthread_mutex_lock(&cq->mu);
	while (n < max && !dry) {
		int ask = max - n < 32 ? max - n : 32;
		int got = ibv_poll_cq(cq->cq, ask, wcs);
		if (got < 0) {
			pthread_mutex_unlock(&cq->mu);
			return n ? n : got;
		}
		dry = got < ask;
		for (int i = 0; i < got; i++) {
			struct ibv_wc *wc = &wcs[i];
			uint32_t slot = wc->wr_id >> 32 & SLOT_MASK, gen = wc->wr_id >> 52 & GEN_MASK, pos = (uint32_t)wc->wr_id;
			if (slot >= cq->size || !cq->table[slot].qp || cq->table[slot].gen != gen)
				continue; // of a queue pair that was closed with work outstanding
			struct hca_qp *qp = cq->table[slot].qp;
			uint32_t tail = wc->wr_id & TOKEN_RECV ? qp->recv_tail : qp->send_tail;
			if ((int32_t)(pos - tail) < 0)
				continue; // flushed by us already
			struct hca_wc *o = &out[n++];
			memset(o, 0, sizeof *o);
			if (wc->wr_id & TOKEN_RECV) {
				o->id = qp->recvs[pos & qp->recv_mask];
				o->op = OP_RECV;
				__atomic_store_n(&qp->recv_tail, pos + 1, __ATOMIC_RELEASE);
			} else {
				o->id = qp->sends[pos & qp->send_mask].id;
				o->op = qp->sends[pos & qp->send_mask].op;
				__atomic_store_n(&qp->send_tail, pos + 1, __ATOMIC_RELEASE);
			}
			o->status = status_of(wc->status);
			o->qp_num = qp->num;
			if (wc->status != IBV_WC_SUCCESS) {
				++*failed;
			} else if (o->op == OP_RECV) {
				o->byte_len = wc->byte_len;
				if (wc->wc_flags & cq->invalidated)
					o->inv_key = wc->invalidated_rkey;
			}
		}
	}
	if (dry)
		n = flush(cq, out, n, max, failed);
	pthread_mutex_unlock(&cq->mu);
	return n;
}

// hca_cq_arm asks for a notice, and polls for what came before that: how many, or an errno below 0.
int hca_cq_arm(struct hca_cq *cq, int drain_first, struct hca_wc *out, int max, int *failed)
{
	if (drain_first)
		drain(cq);
	int err = ibv_req_notify_cq(cq->cq, 0);
	if (err)
		return -err;
	return hca_cq_poll(cq, out, max, failed);
}

// attach gives qp a place in its completion queue's table.
static int attach(struct hca_qp *qp)
{
	struct hca_cq *cq = qp->cq;
	uint32_t i;
	pthread_mutex_lock(&cq->mu);
	for (i = 0; i < cq->size && cq->table[i].qp; i++)
		;
	if (i == cq->size) {
		uint32_t size = cq->size ? cq->size * 2 : 16;
		struct place *t = size > SLOT_MASK + 1 ? NULL : realloc(cq->table, size * sizeof *t);
		if (!t) {
			pthread_mutex_unlock(&cq->mu);
			return ENOMEM;
		}
		memset(t + cq->size, 0, (size - cq->size) * sizeof *t);
		cq->table = t;
		cq->size = size;
	}
	cq->table[i].qp = qp;
	cq->table[i].gen = (cq->table[i].gen + 1) & GEN_MASK;
	qp->token = (uint64_t)cq->table[i].gen << 52 | (uint64_t)i << 32;
	pthread_mutex_unlock(&cq->mu);
	return 0;
}

// unplace takes qp out of the table: completions of it mean nothing any more.
static void unplace(struct hca_qp *qp)
{
	struct hca_cq *cq = qp->cq;
	pthread_mutex_lock(&cq->mu);
	cq->table[qp->token >> 32 & SLOT_MASK].qp = NULL;
	for (struct hca_qp **p = &cq->flushed; *p; p = &(*p)->next)
		if (*p == qp) {
			*p = qp->next;
			break;
		}
	pthread_mutex_unlock(&cq->mu);
}

// hca_qp_detach ends completions of qp, and what it wanted of the queue.
void hca_qp_detach(struct hca_qp *qp)
{
	unplace(qp);
	pthread_mutex_lock(&qp->cq->mu);
	qp->cq->wanted -= qp->send_max + qp->recv_max;
	pthread_mutex_unlock(&qp->cq->mu);
}

struct hca_qp *hca_qp_open(struct rdma_cm_id *id, struct ibv_pd *pd, struct hca_cq *cq, uint32_t send_wr, uint32_t recv_wr,
	uint32_t send_sge, uint32_t recv_sge)
{
	struct hca_qp *qp = calloc(1, sizeof *qp);
	if (!qp)
		return NULL;
	pthread_mutex_init(&qp->mu, NULL);
	qp->cq = cq;
	qp->send_max = send_wr;
	qp->recv_max = recv_wr;
	qp->send_mask = pow2(send_wr) - 1;
	qp->recv_mask = pow2(recv_wr) - 1;
	qp->sends = calloc(qp->send_mask + 1, sizeof *qp->sends);
	qp->recvs = calloc(qp->recv_mask + 1, sizeof *qp->recvs);
	int err = ENOMEM;
	if (!qp->sends || !qp->recvs || (err = attach(qp)))
		goto failed;
	struct ibv_qp_init_attr attr = {
		.send_cq = cq->cq,
		.recv_cq = cq->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = send_wr, .max_recv_wr = recv_wr, .max_send_sge = send_sge, .max_recv_sge = recv_sge},
	};
	if (rdma_create_qp(id, pd, &attr)) {
		err = errno;
		unplace(qp);
		// The device, or the state of the id? A queue pair without the id tells.
		struct ibv_qp *alone = ibv_create_qp(pd, &attr);
		if (alone) {
			ibv_destroy_qp(alone);
			err = ENOTCONN;
		}
		goto failed;
	}
	qp->qp = id->qp;
	qp->num = id->qp->qp_num;
	return qp;
failed:
	free(qp->sends);
	free(qp->recvs);
	free(qp);
	errno = err;
	return NULL;
}

uint32_t hca_qp_num(struct hca_qp *qp) { return qp->num; }

// hca_qp_ready lets sends be posted.
void hca_qp_ready(struct hca_qp *qp) { __atomic_store_n(&qp->ready, 1, __ATOMIC_RELEASE); }

int hca_qp_error(struct hca_qp *qp, int *wake)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	pthread_mutex_lock(&qp->mu);
	qp->error = 1; // from now on the device gets nothing, whose flush it might forget
	pthread_mutex_unlock(&qp->mu);
	int err = ibv_modify_qp(qp->qp, &attr, IBV_QP_STATE);
	if (err || !qp->cq->forgets)
		return err;
	pthread_mutex_lock(&qp->mu);
	qp->settled = 1;
	pthread_mutex_unlock(&qp->mu);
	list(qp);
	*wake = 1;
	return 0;
}

// hca_qp_in_error asks the device.
int hca_qp_in_error(struct hca_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	if (ibv_query_qp(qp->qp, &attr, IBV_QP_STATE, &init))
		return 0;
	return attr.qp_state == IBV_QPS_ERR || attr.qp_state == IBV_QPS_SQE;
}

int hca_qp_free(struct rdma_cm_id *id, struct hca_qp *qp)
{
	int err = ibv_destroy_qp(qp->qp);
	if (err)
		return err;
	id->qp = NULL;
	pthread_mutex_destroy(&qp->mu);
	free(qp->sends);
	free(qp->recvs);
	free(qp);
	return 0;
}

static int fill(struct ibv_sge *to, const struct hca_sge *from, int n)
{
	for (int i = 0; i < n; i++)
		to[i] = (struct ibv_sge){.addr = from[i].addr, .length = from[i].length, .lkey = from[i].lkey};
	return n;
}

static void post_recvs(struct hca_share *s, struct hca_recv *in)
{
	struct hca_qp *qp = s->qp;
	struct ibv_recv_wr wrs[CHAIN], *bad;
	struct ibv_sge sges[CHAIN][MAX_SGE];
	int flushed = 0;
	pthread_mutex_lock(&qp->mu);
	while (s->recvs < s->nrecv && !s->err) {
		uint32_t room = qp->recv_max - (qp->recv_head - __atomic_load_n(&qp->recv_tail, __ATOMIC_ACQUIRE));
		uint32_t n = s->nrecv - s->recvs;
		if (n > room)
			n = room;
		if (n > CHAIN)
			n = CHAIN;
		if (!n) {
			s->err = HCA_FULL;
			break;
		}
		for (uint32_t i = 0; i < n; i++)
			if (in[s->recvs + i].nsge > MAX_SGE)
				n = i;
		if (!n) {
			s->err = EINVAL;
			break;
		}
		for (uint32_t i = 0; i < n; i++) {
			struct hca_recv *r = &in[s->recvs + i];
			uint32_t pos = qp->recv_head + i;
			qp->recvs[pos & qp->recv_mask] = r->id;
			wrs[i] = (struct ibv_recv_wr){.wr_id = TOKEN_RECV | qp->token | pos, .sg_list = sges[i], .num_sge = fill(sges[i], r->sge, r->nsge),
				.next = i + 1 < n ? &wrs[i + 1] : NULL};
		}
		if (qp->error) {
			flushed = 1;
		} else {
			s->err = ibv_post_recv(qp->qp, wrs, &bad);
			if (s->err)
				n = (uint32_t)(bad - wrs);
			qp->recv_given += n;
		}
		qp->recv_head += n;
		s->recvs += n;
	}
	pthread_mutex_unlock(&qp->mu);
	if (flushed) {
		list(qp);
		s->wake = 1;
	}
}

static const enum ibv_wr_opcode opcodes[] = {
	[OP_SEND] = IBV_WR_SEND,
	[OP_SEND_INV] = IBV_WR_SEND_WITH_INV,
	[OP_WRITE] = IBV_WR_RDMA_WRITE,
	[OP_READ] = IBV_WR_RDMA_READ,
	[OP_BIND] = IBV_WR_BIND_MW,
	[OP_LOCAL_INV] = IBV_WR_LOCAL_INV,
};

static void post_sends(struct hca_share *s, struct hca_send *in)
{
	struct hca_qp *qp = s->qp;
	struct ibv_send_wr wrs[CHAIN], *bad;
	struct ibv_sge sges[CHAIN][MAX_SGE];
	if (!__atomic_load_n(&qp->ready, __ATOMIC_ACQUIRE)) {
		s->err = HCA_STATE;
		return;
	}
	int flushed = 0;
	pthread_mutex_lock(&qp->mu);
	while (s->sends < s->nsend && !s->err) {
		uint32_t room = qp->send_max - (qp->send_head - __atomic_load_n(&qp->send_tail, __ATOMIC_ACQUIRE));
		uint32_t n = s->nsend - s->sends;
		if (n > room)
			n = room;
		if (n > CHAIN)
			n = CHAIN;
		if (!n) {
			s->err = HCA_FULL;
			break;
		}
		for (uint32_t i = 0; i < n; i++)
			if (in[s->sends + i].nsge > MAX_SGE)
				n = i;
		if (!n) {
			s->err = EINVAL;
			break;
		}
		for (uint32_t i = 0; i < n; i++) {
			struct hca_send *w = &in[s->sends + i];
			struct ibv_send_wr *o = &wrs[i];
			uint32_t pos = qp->send_head + i;
			qp->sends[pos & qp->send_mask] = (struct sent){w->id, w->op};
			memset(o, 0, sizeof *o);
			o->wr_id = qp->token | pos;
			o->opcode = opcodes[w->op];
			o->send_flags = (w->signaled ? IBV_SEND_SIGNALED : 0) | (w->fence ? IBV_SEND_FENCE : 0);
			o->next = i + 1 < n ? &wrs[i + 1] : NULL;
			o->sg_list = sges[i];
			switch (w->op) {
			case OP_BIND:
				o->bind_mw.mw = (struct ibv_mw *)(uintptr_t)w->bind.mw;
				o->bind_mw.rkey = w->rkey;
				o->bind_mw.bind_info.mr = (struct ibv_mr *)(uintptr_t)w->bind.mr;
				o->bind_mw.bind_info.addr = w->bind.addr;
				o->bind_mw.bind_info.length = w->bind.length;
				o->bind_mw.bind_info.mw_access_flags = w->bind.access;
				break;
			case OP_SEND_INV:
			case OP_LOCAL_INV:
				o->invalidate_rkey = w->rkey;
				o->num_sge = fill(sges[i], w->sge, w->nsge);
				break;
			case OP_WRITE:
			case OP_READ:
				o->wr.rdma.remote_addr = w->remote_addr;
				o->wr.rdma.rkey = w->rkey;
				// fall through
			default:
				o->num_sge = fill(sges[i], w->sge, w->nsge);
			}
		}
		if (qp->error) {
			flushed = 1;
		} else {
			s->err = ibv_post_send(qp->qp, wrs, &bad);
			if (s->err)
				n = (uint32_t)(bad - wrs);
			qp->send_given = qp->send_head + n;
			for (uint32_t i = 0; i < n; i++)
				if (in[s->sends + i].signaled)
					qp->send_last = qp->send_head + i + 1;
		}
		qp->send_head += n;
		s->sends += n;
	}
	pthread_mutex_unlock(&qp->mu);
	if (flushed) {
		list(qp);
		s->wake = 1;
	}
}

void hca_post(struct hca_share *shares, int n, struct hca_recv *recvs, struct hca_send *sends)
{
	for (int i = 0; i < n; i++) {
		struct hca_share *s = &shares[i];
		if (s->nrecv)
			post_recvs(s, recvs);
		if (!s->err && s->nsend) {
			post_sends(s, sends);
			s->in_send = s->err != 0;
		}
		recvs += s->nrecv;
		sends += s->nsend;
	}
}
