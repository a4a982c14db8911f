// Package hca holds the tests that want RDMA devices of the kernel (build tag hca), the script that makes a
// guest with such devices, and what runs in it. make test-hca does it all.
package hca
