//go:build !nordma

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static uint64_t handles; // given out as the contexts of ids, so that an old id's event is never taken for a new one's

struct rdma_cm_id *hca_id_open(struct rdma_event_channel *ch, uint64_t *handle)
{
	struct rdma_cm_id *id;
	*handle = __atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED);
	return rdma_create_id(ch, &id, (void *)(uintptr_t)*handle, RDMA_PS_TCP) ? NULL : id;
}

int hca_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ? -1 : 0;
}

// hca_events takes up to max events, copies what matters and acknowledges each at once.
int hca_events(struct rdma_event_channel *ch, struct hca_event *evs, int max, int *err)
{
	int n = 0;
	*err = 0;
	while (n < max) {
		struct rdma_cm_event *in;
		if (rdma_get_cm_event(ch, &in)) {
			// Others than these are of one event, which librdmacm has dropped.
			if (errno == EAGAIN || errno == EWOULDBLOCK)
				break;
			*err = errno;
			break;
		}
		struct hca_event *ev = &evs[n++];
		memset(ev, 0, offsetof(struct hca_event, private_data));
		ev->type = in->event;
		ev->status = in->status;
		if (in->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			ev->id = __atomic_add_fetch(&handles, 1, __ATOMIC_RELAXED);
			in->id->context = (void *)(uintptr_t)ev->id;
			ev->child = (uintptr_t)in->id;
			ev->listener = (uintptr_t)in->listen_id->context;
		} else {
			ev->id = (uintptr_t)in->id->context;
		}
		switch (in->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
		case RDMA_CM_EVENT_CONNECT_RESPONSE:
		case RDMA_CM_EVENT_ESTABLISHED:
		case RDMA_CM_EVENT_REJECTED:
			ev->responder_resources = in->param.conn.responder_resources;
			ev->initiator_depth = in->param.conn.initiator_depth;
			ev->flow_control = in->param.conn.flow_control;
			ev->retry_count = in->param.conn.retry_count;
			ev->rnr_retry_count = in->param.conn.rnr_retry_count;
			if (in->param.conn.private_data) {
				ev->private_len = in->param.conn.private_data_len;
				memcpy(ev->private_data, in->param.conn.private_data, ev->private_len);
			}
		default:
			break;
		}
		rdma_ack_cm_event(in);
	}
	return n;
}

static void to_sockaddr(const struct hca_addr *a, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof *out);
	if (a->family == 4) {
		struct sockaddr_in *in = (struct sockaddr_in *)out;
		in->sin_family = AF_INET;
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->ip, 4);
	} else {
		struct sockaddr_in6 *in = (struct sockaddr_in6 *)out;
		in->sin6_family = AF_INET6;
		in->sin6_port = htons(a->port);
		in->sin6_scope_id = a->scope;
		memcpy(&in->sin6_addr, a->ip, 16);
	}
}

static void from_sockaddr(const struct sockaddr *in, struct hca_addr *a)
{
	memset(a, 0, sizeof *a);
	if (in->sa_family == AF_INET) {
		const struct sockaddr_in *i = (const struct sockaddr_in *)in;
		a->family = 4;
		a->port = ntohs(i->sin_port);
		memcpy(a->ip, &i->sin_addr, 4);
	} else if (in->sa_family == AF_INET6) {
		const struct sockaddr_in6 *i = (const struct sockaddr_in6 *)in;
		a->family = 6;
		a->port = ntohs(i->sin6_port);
		a->scope = i->sin6_scope_id;
		memcpy(a->ip, &i->sin6_addr, 16);
	}
}

// The calls below give 0 or an errno.

static int set_reuse(struct rdma_cm_id *id, int reuse)
{
	int on = 1;
	return reuse && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on) ? errno : 0;
}

int hca_bind(struct rdma_cm_id *id, struct hca_addr *at, int reuse)
{
	struct sockaddr_storage sa;
	int err = set_reuse(id, reuse);
	if (err)
		return err;
	to_sockaddr(at, &sa);
	return rdma_bind_addr(id, (struct sockaddr *)&sa) ? errno : 0;
}

int hca_resolve_addr(struct rdma_cm_id *id, struct hca_addr *from, struct hca_addr *to, int ms, int reuse)
{
	struct sockaddr_storage src, dst;
	int err = set_reuse(id, reuse);
	if (err)
		return err;
	to_sockaddr(to, &dst);
	if (from->family)
		to_sockaddr(from, &src);
	return rdma_resolve_addr(id, from->family ? (struct sockaddr *)&src : NULL, (struct sockaddr *)&dst, ms) ? errno : 0;
}

static void conn_param(struct rdma_conn_param *out, const struct hca_param *p, const void *priv, int len)
{
	memset(out, 0, sizeof *out);
	out->private_data = priv;
	out->private_data_len = (uint8_t)len;
	out->responder_resources = p->responder_resources;
	out->initiator_depth = p->initiator_depth;
	out->flow_control = p->flow_control;
	out->retry_count = p->retry_count;
	out->rnr_retry_count = p->rnr_retry_count;
}

int hca_connect(struct rdma_cm_id *id, struct hca_param *p, const void *priv, int len)
{
	struct rdma_conn_param c;
	conn_param(&c, p, priv, len);
	return rdma_connect(id, &c) ? errno : 0;
}

int hca_accept(struct rdma_cm_id *id, struct hca_param *p, const void *priv, int len)
{
	struct rdma_conn_param c;
	conn_param(&c, p, priv, len);
	return rdma_accept(id, &c) ? errno : 0;
}

int hca_option(struct rdma_cm_id *id, int option, uint8_t value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof value) ? errno : 0;
}

void hca_names(struct rdma_cm_id *id, struct hca_addr *local, struct hca_addr *remote)
{
	from_sockaddr(rdma_get_local_addr(id), local);
	from_sockaddr(rdma_get_peer_addr(id), remote);
}

// hca_async_next takes one event of a device and acknowledges it; 0 or an errno.
int hca_async_next(struct ibv_context *ctx, struct hca_async *out)
{
	struct ibv_async_event ev;
	if (ibv_get_async_event(ctx, &ev))
		return errno;
	memset(out, 0, sizeof *out);
	out->type = ev.event_type;
	switch (ev.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_PATH_MIG_ERR:
		out->qp = ev.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_GID_CHANGE:
		out->port = ev.element.port_num;
	default:
		break;
	}
	ibv_ack_async_event(&ev);
	return 0;
}

static const int mtus[] = {0, 256, 512, 1024, 2048, 4096};

int hca_device_info(struct ibv_context *ctx, int port, struct hca_device *d)
{
	struct ibv_device_attr a;
	struct ibv_port_attr p;
	memset(d, 0, sizeof *d);
	strncpy(d->name, ibv_get_device_name(ctx->device), sizeof d->name - 1);
	d->iwarp = ctx->device->transport_type == IBV_TRANSPORT_IWARP;
	int err = ibv_query_device(ctx, &a);
	if (err)
		return err;
	memcpy(d->firmware, a.fw_ver, sizeof d->firmware - 1);
	d->max_qp_wr = a.max_qp_wr;
	d->max_sge = a.max_sge;
	d->max_cqe = a.max_cqe;
	d->max_mr = a.max_mr_size;
	d->windows = a.max_mw > 0 && (a.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B));
	d->loose = a.vendor_id == HCA_RXE;
	d->invalidates = d->windows && (a.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS);
	d->reads = a.max_qp_rd_atom > 0 && a.vendor_id != HCA_SIW; // which completes a refused read as a good one
	err = ibv_query_port(ctx, (uint8_t)port, &p);
	if (err)
		return err;
	d->ethernet = p.link_layer == IBV_LINK_LAYER_ETHERNET;
	d->active = p.state == IBV_PORT_ACTIVE;
	d->mtu = p.active_mtu > 0 && p.active_mtu <= 5 ? mtus[p.active_mtu] : 0;
	return 0;
}
