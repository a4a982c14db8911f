package mem

// queue is a FIFO that allocates only to grow.
type queue[T any] struct {
	ring []T
	head int
	n    int
}

func (q *queue[T]) push(v T) {
	if q.n == len(q.ring) {
		bigger := make([]T, max(8, 2*len(q.ring)))
		for i := range q.n {
			bigger[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = bigger, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = v
	q.n++
}

func (q *queue[T]) first() *T { return q.at(0) }

// at is the k-th from the head.
func (q *queue[T]) at(k int) *T { return &q.ring[(q.head+k)&(len(q.ring)-1)] }

func (q *queue[T]) pop() {
	var zero T
	q.ring[q.head] = zero
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
}
