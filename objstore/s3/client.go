package s3

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// expiryWindow is how long before their end temporary credentials are renewed.
const expiryWindow = 2 * time.Minute

// loadConfig reads AWS's variables and files.
func loadConfig(ctx context.Context, cfg Config) (aws.Config, error) {
	opts := []func(*config.LoadOptions) error{
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithHTTPClient(buildHTTP(cfg.Transport.withDefaults())),
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
		config.WithCredentialsCacheOptions(func(o *aws.CredentialsCacheOptions) {
			o.ExpiryWindow = expiryWindow
		}),
	}
	if cfg.Profile != "" {
		opts = append(opts, config.WithSharedConfigProfile(cfg.Profile))
	}
	if cfg.Region != "" {
		opts = append(opts, config.WithRegion(cfg.Region))
	}
	if cfg.Anonymous {
		opts = append(opts, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	}
	return config.LoadDefaultConfig(ctx, opts...)
}

// buildHTTP is the HTTP client before the SDK has put AWS_CA_BUNDLE into it.
func buildHTTP(t Transport) *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) {
			d.Timeout = t.DialTimeout
			d.KeepAlive = 15 * time.Second
		}).
		WithTransportOptions(func(tr *http.Transport) {
			tr.MaxConnsPerHost = t.MaxConns
			tr.MaxIdleConns = t.MaxConns
			tr.MaxIdleConnsPerHost = t.MaxConns
			tr.IdleConnTimeout = t.IdleTimeout
			tr.TLSHandshakeTimeout = t.TLSTimeout
			tr.ResponseHeaderTimeout = t.HeaderTimeout
			tr.ReadBufferSize = t.ReadBufferSize
			tr.WriteBufferSize = 64 << 10
			tr.DisableCompression = true // what is stored is what is read
			// One stream a connection: bandwidth on S3 is per connection.
			tr.ForceAttemptHTTP2 = false
			tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		})
}

// newClient makes the SDK's client and the transport it uses.
func newClient(ac aws.Config, cfg Config) (*s3.Client, *http.Transport) {
	transport := ac.HTTPClient.(*awshttp.BuildableClient).GetTransport()
	ac.HTTPClient = &http.Client{
		Transport: transport,
		// A signature holds the host's name: a redirect cannot be followed, and says
		// more when it is not.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if !cfg.Anonymous && ac.Credentials != nil {
		ac.Credentials = markedCredentials{ac.Credentials}
	}
	client := s3.NewFromConfig(ac, func(o *s3.Options) {
		if cfg.Endpoint != "" {
			o.BaseEndpoint = &cfg.Endpoint
		}
		switch cfg.Style {
		case StyleAuto:
			o.UsePathStyle = o.BaseEndpoint != nil && !isAWS(*o.BaseEndpoint)
		case StylePath:
			o.UsePathStyle = true
		}
		o.DisableLogOutputChecksumValidationSkipped = true
		o.APIOptions = append(o.APIOptions,
			awsmiddleware.AddUserAgentKeyValue("leatfs", "1.0"),
			unsignedPayload)
		if name, version, ok := strings.Cut(cfg.UserAgent, "/"); ok {
			o.APIOptions = append(o.APIOptions, awsmiddleware.AddUserAgentKeyValue(name, version))
		} else if name != "" {
			o.APIOptions = append(o.APIOptions, awsmiddleware.AddUserAgentKey(name))
		}
	})
	return client, transport
}

// markedCredentials makes a failure to get credentials known by its type.
type markedCredentials struct{ aws.CredentialsProvider }

func (m markedCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := m.CredentialsProvider.Retrieve(ctx)
	if err != nil {
		return c, &credentialsError{err}
	}
	return c, nil
}

// unsignedPayload leaves the SHA-256 of uploads out of their signature, over plain HTTP too
// (over TLS the SDK does so itself): the checksum that every upload carries vouches for
// the data at a small part of the cost.
func unsignedPayload(stack *middleware.Stack) error {
	switch stack.ID() {
	case "PutObject", "UploadPart":
		return v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware(stack)
	}
	return nil
}

// askChecksum asks for the stored checksum. It is a header of our own making: by the
// field of the request the SDK would also compute the checksum while the body is read,
// which is done elsewhere.
func askChecksum(o *s3.Options) {
	o.APIOptions = append(o.APIOptions,
		smithyhttp.SetHeaderValue("X-Amz-Checksum-Mode", "ENABLED"))
}

// answerHeader is the header of the answer that an operation's metadata holds.
func answerHeader(m middleware.Metadata) http.Header {
	if r, ok := awsmiddleware.GetRawResponse(m).(*smithyhttp.Response); ok && r != nil && r.Response != nil {
		return r.Header
	}
	return nil
}
