package limit_test

import (
	"testing"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/limit"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func TestSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return limit.New(memstore.New(), limit.Options{}) }, storetest.Features{KeyBesidePrefix: true})
}
