package iwarp

// fifo is a queue of nodes that stay where they are in memory and are used again, so that it allocates
// only to grow. It belongs to whoever holds the queue pair's lock.
type fifo[T any] struct {
	ring []*T // a power of two long
	head int
	n    int
	free []*T
}

// next appends a node, with the content of its last use, and gives it.
func (f *fifo[T]) next() *T {
	if f.n == len(f.ring) {
		bigger := make([]*T, max(4, 2*len(f.ring)))
		for i := range f.n {
			bigger[i] = f.at(i)
		}
		f.ring, f.head = bigger, 0
	}
	var t *T
	if k := len(f.free); k > 0 {
		t = f.free[k-1]
		f.free = f.free[:k-1]
	} else {
		t = new(T)
	}
	f.ring[(f.head+f.n)&(len(f.ring)-1)] = t
	f.n++
	return t
}

func (f *fifo[T]) push(v T) { *f.next() = v }

// at gives the node at place i from the head.
func (f *fifo[T]) at(i int) *T { return f.ring[(f.head+i)&(len(f.ring)-1)] }

// pop takes the head off; its node is used again.
func (f *fifo[T]) pop() {
	t := f.ring[f.head]
	f.ring[f.head] = nil
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.n--
	f.free = append(f.free, t)
}
