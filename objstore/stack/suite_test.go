package stack_test

import (
	"testing"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/stack"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return stack.New(memstore.New(), stack.Options{}) }, storetest.Features{KeyBesidePrefix: true})
}
