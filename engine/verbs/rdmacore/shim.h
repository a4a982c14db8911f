//go:build !nordma

// The border to libibverbs and librdmacm: flat structs and calls that each do a whole batch. Nothing here
// keeps a pointer into Go's memory after it returns.
#ifndef O2IBD_RDMACORE_SHIM_H
#define O2IBD_RDMACORE_SHIM_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

// hca_wc, hca_sge and hca_recv are laid out as verbs.WC, verbs.SGE and verbs.RecvWR; a test compares them.
struct hca_wc {
	uint64_t id;
	uint8_t op, status;
	uint32_t byte_len, qp_num, inv_key;
};

struct hca_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct hca_recv {
	uint64_t id;
	uint8_t nsge;
	struct hca_sge sge[4];
};

// hca_send is verbs.SendWR without what Go alone understands. A bind has no elements and uses their place.
struct hca_send {
	uint64_t id, remote_addr;
	uint32_t rkey;
	uint8_t op, signaled, fence, nsge;
	union {
		struct hca_sge sge[4];
		struct {
			uint64_t mw, mr; // pointers of libibverbs
			uint64_t addr, length;
			uint32_t access;
		} bind;
	};
};

// Results of posting besides errno.
enum { HCA_FULL = -1, HCA_STATE = -2 };

// HCA_RXE is the vendor of the kernel's own RoCE device.
#define HCA_RXE 0xffffff
// HCA_SIW is that of its iWARP device.
#define HCA_SIW 0x626d74

struct hca_qp;
struct hca_cq;

struct hca_share {
	struct hca_qp *qp;
	uint32_t nrecv, nsend;           // in
	uint32_t recvs, sends;           // out: taken
	int err;                         // out: an errno or a result above
	uint8_t in_send;                 // out: err is of a send
	uint8_t wake;                    // out: some were flushed at once
};

struct hca_cq *hca_cq_open(struct ibv_context *ctx, int entries);
int hca_cq_fd(struct hca_cq *cq);
int hca_cq_poll(struct hca_cq *cq, struct hca_wc *out, int max, int *failed);
int hca_cq_arm(struct hca_cq *cq, int drain, struct hca_wc *out, int max, int *failed);
void hca_cq_grow(struct hca_cq *cq, uint32_t more, uint32_t limit);
int hca_cq_close(struct hca_cq *cq);

struct hca_qp *hca_qp_open(struct rdma_cm_id *id, struct ibv_pd *pd, struct hca_cq *cq, uint32_t send_wr, uint32_t recv_wr,
	uint32_t send_sge, uint32_t recv_sge);
uint32_t hca_qp_num(struct hca_qp *qp);
void hca_qp_ready(struct hca_qp *qp);
int hca_qp_error(struct hca_qp *qp, int *wake);
int hca_qp_in_error(struct hca_qp *qp);
void hca_qp_detach(struct hca_qp *qp);
int hca_qp_free(struct rdma_cm_id *id, struct hca_qp *qp);

void hca_post(struct hca_share *shares, int n, struct hca_recv *recvs, struct hca_send *sends);

struct hca_event {
	uint64_t id, listener; // handles
	uint64_t child;        // the new rdma_cm_id
	int32_t type, status;
	uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, private_len;
	uint8_t private_data[256];
};

struct hca_addr {
	uint8_t ip[16];
	uint16_t port;
	uint8_t family; // 4, 6 or 0
	uint32_t scope;
};

struct hca_param {
	uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count;
};

struct rdma_cm_id *hca_id_open(struct rdma_event_channel *ch, uint64_t *handle);
int hca_events(struct rdma_event_channel *ch, struct hca_event *evs, int max, int *err);
int hca_bind(struct rdma_cm_id *id, struct hca_addr *at, int reuse);
int hca_resolve_addr(struct rdma_cm_id *id, struct hca_addr *from, struct hca_addr *to, int ms, int reuse);
int hca_connect(struct rdma_cm_id *id, struct hca_param *p, const void *priv, int len);
int hca_accept(struct rdma_cm_id *id, struct hca_param *p, const void *priv, int len);
int hca_option(struct rdma_cm_id *id, int option, uint8_t value);
void hca_names(struct rdma_cm_id *id, struct hca_addr *local, struct hca_addr *remote);

struct hca_async {
	int32_t type;
	int32_t port;
	uint32_t qp;
};

int hca_async_next(struct ibv_context *ctx, struct hca_async *ev);
int hca_nonblock(int fd);

struct hca_device {
	char name[64];
	char firmware[64];
	uint8_t iwarp, ethernet, active, windows, loose, invalidates, reads;
	int32_t mtu;
	int32_t max_qp_wr, max_sge, max_cqe;
	uint64_t max_mr;
};

int hca_device_info(struct ibv_context *ctx, int port, struct hca_device *d);

#endif
