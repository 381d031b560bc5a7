package stall_test

import (
	"testing"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/stall"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return stall.New(memstore.New(), stall.Options{}) }, storetest.Features{KeyBesidePrefix: true})
}
