# o2ibd as a container: build with Go and Node.js, run with rdma-core's libraries and providers.
FROM node:20-bookworm-slim AS page
WORKDIR /src
COPY package.json package-lock.json .npmrc tsconfig.json ./
RUN npm ci --no-audit --no-fund
COPY web ./web
RUN npm run build

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
RUN apt-get update && apt-get install -y --no-install-recommends libibverbs-dev librdmacm-dev && rm -rf /var/lib/apt/lists/*
COPY . .
COPY --from=page /src/web/assets/dist ./web/assets/dist
ARG VERSION=dev
RUN go build -trimpath -ldflags "-X main.version=${VERSION}" -o /o2ibd ./cmd/o2ibd

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends libibverbs1 librdmacm1 ibverbs-providers rdma-core ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 987 --home-dir /var/lib/o2ibd --create-home o2ibd \
 && chmod 0750 /var/lib/o2ibd
COPY --from=build /o2ibd /usr/bin/o2ibd
COPY LICENSE /usr/share/doc/o2ibd/LICENSE
USER o2ibd
VOLUME /var/lib/o2ibd
EXPOSE 8470 987
# Privileged ports (987 and the source ports of connections) need --cap-add=NET_BIND_SERVICE, and an HCA
# needs --device=/dev/infiniband and --ulimit memlock=-1: see deploy/README.md.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["/usr/bin/o2ibd", "--socket", "/var/lib/o2ibd/o2ibd.sock", "healthz"]
ENTRYPOINT ["/usr/bin/o2ibd"]
CMD ["serve", "--state", "/var/lib/o2ibd"]
