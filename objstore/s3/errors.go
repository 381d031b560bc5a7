package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	smithy "github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/leatfs/leatfs/objstore"
)

// codeKind is what the error codes of S3 and its likes mean. A code that is not here is
// judged by its HTTP status (statusKind).
func codeKind(code string) (objstore.Kind, bool) {
	switch code {
	case "NoSuchKey", "NoSuchVersion", "NoSuchUpload", "NotFound":
		return objstore.NotFound, true
	case "NoSuchBucket":
		return objstore.NoBucket, true
	case "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "NotSignedUp",
		"InvalidPayer", "KMS.DisabledException", "KMS.InvalidKeyUsageException",
		"KMS.InvalidStateException", "KMS.NotFoundException", "AccessForbidden":
		return objstore.AccessDenied, true
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "InvalidToken",
		"MissingSecurityHeader", "MissingAuthenticationToken", "InvalidClientTokenId",
		"UnrecognizedClientException", "AuthorizationHeaderMalformed", "CredentialsNotSupported",
		"XAdminUserNotFound", "XMinioAdminNoSuchUser":
		return objstore.BadCredentials, true
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired":
		return objstore.Expired, true
	case "RequestTimeTooSkewed":
		return objstore.ClockSkew, true
	case "PreconditionFailed", "ConditionalRequestConflict":
		return objstore.PreconditionFailed, true
	case "InvalidRange":
		return objstore.InvalidRange, true
	case "InvalidObjectState":
		return objstore.Archived, true
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "TooManyRequestsException",
		"RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException",
		"RequestThrottled", "RequestThrottledException", "BandwidthLimitExceeded",
		"ProvisionedThroughputExceededException", "KMS.ThrottlingException", "LimitExceededException":
		return objstore.Throttled, true
	case "InternalError", "OperationAborted", "IncompleteBody", "XMinioServerNotInitialized",
		"XMinioStorageFull", "TemporaryRedirect", "InternalServerError", "KMS.InternalException",
		"KMS.DependencyTimeoutException":
		return objstore.Unavailable, true
	case "RequestTimeout", "RequestTimeoutException":
		return objstore.Timeout, true
	case "BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch",
		"ContentSHA256Mismatch":
		return objstore.Corrupt, true
	case "NotImplemented":
		return objstore.Unsupported, true
	case "PermanentRedirect", "IllegalLocationConstraintException", "MovedPermanently", "AuthorizationQueryParametersError":
		return objstore.WrongRegion, true
	}
	return objstore.Unknown, false
}

// statusKind judges an answer that has no code, as those to HEAD have none.
func statusKind(status int) objstore.Kind {
	switch status {
	case http.StatusMovedPermanently:
		return objstore.WrongRegion
	case http.StatusTemporaryRedirect:
		return objstore.Unavailable
	case http.StatusUnauthorized:
		return objstore.BadCredentials
	case http.StatusForbidden:
		return objstore.AccessDenied
	case http.StatusNotFound, http.StatusGone:
		return objstore.NotFound
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return objstore.Timeout
	case http.StatusPreconditionFailed:
		return objstore.PreconditionFailed
	case http.StatusRequestedRangeNotSatisfiable:
		return objstore.InvalidRange
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return objstore.Throttled
	case http.StatusNotImplemented:
		return objstore.Unsupported
	}
	switch {
	case status >= 500:
		return objstore.Unavailable
	case status >= 400:
		return objstore.BadRequest
	case status >= 300:
		return objstore.WrongRegion
	}
	return objstore.Unknown
}

// credentialsError marks a failure to get credentials, which the SDK reports as text.
type credentialsError struct{ err error }

func (e *credentialsError) Error() string { return e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }

// wrap turns what the SDK answered into an *objstore.Error. op is the method as people
// know it, key what it was about.
func wrap(ctx context.Context, op, key string, err error) error {
	if err == nil {
		return nil
	}
	var done *objstore.Error
	if errors.As(err, &done) {
		return err
	}
	e := &objstore.Error{Op: op, Key: key}
	if ctx.Err() != nil {
		e.Kind, e.Err = objstore.Canceled, context.Cause(ctx)
		return e
	}
	var cred *credentialsError
	if errors.As(err, &cred) {
		// The chain had credentials when the store was opened: they may be had again.
		e.Kind, e.Err = objstore.Expired, cred.err
		e.Hint = "credentials could not be refreshed"
		return e
	}

	e.Err = trimmed(err)
	var h http.Header
	var resp *smithyhttp.ResponseError
	if errors.As(err, &resp) && resp.Response != nil && resp.Response.Response != nil {
		e.Status = resp.HTTPStatusCode()
		h = resp.Response.Header
		e.RequestID = h.Get("X-Amz-Request-Id")
		e.RetryAfter = retryAfter(h.Get("Retry-After"), time.Now())
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		e.Code = api.ErrorCode()
		if m := api.ErrorMessage(); m != "" && m != "UnknownError" {
			e.Err = errors.New(m)
		} else {
			e.Err = nil
		}
	}
	kind, ok := codeKind(e.Code)
	switch {
	case ok:
		e.Kind = kind
	case e.Status == http.StatusNotFound && (e.Code != "" || isDecode(err)):
		// Not what S3 says of a missing key: a proxy, or something else that is not there.
		// "No such file" would be a lie that spreads.
		e.Kind, e.Hint = objstore.Unavailable, notS3
		if e.Code != "" {
			e.Kind, e.Hint = objstore.BadRequest, ""
		}
	case e.Status >= 300:
		e.Kind = statusKind(e.Status)
	default:
		// No answer, or one that is not S3's.
		e.Kind, e.Hint = networkKind(err)
		if e.Kind == objstore.Unknown && e.Status != 0 {
			e.Kind, e.Hint = objstore.Unavailable, notS3
		}
	}
	describe(e, h)
	return e
}

// describe adds what only the headers tell, and the remedy.
func describe(e *objstore.Error, h http.Header) {
	switch {
	case e.Status == http.StatusMethodNotAllowed && h.Get("X-Amz-Delete-Marker") == "true":
		e.Kind = objstore.NotFound
	case e.Code == "AuthorizationHeaderMalformed" && h.Get(regionHeader) != "":
		e.Kind = objstore.WrongRegion
	case e.Kind == objstore.AccessDenied && skewOf(h, time.Now()) > maxSkew:
		// A HEAD that is refused has no code; the clock is the likelier reason.
		if e.Code == "" || e.Code == "Forbidden" {
			e.Kind = objstore.ClockSkew
		}
	}
	if e.Hint != "" {
		return
	}
	switch e.Kind {
	case objstore.Archived:
		e.Hint = "restore it first (aws s3api restore-object), then read it again"
	case objstore.Expired:
		e.Hint = "renew the session token or log in again"
	case objstore.ClockSkew:
		if d := skewOf(h, time.Now()); d > 0 {
			e.Hint = "this machine's clock differs from the store's by " + d.Round(time.Second).String() + ": set it (timedatectl set-ntp true)"
		} else {
			e.Hint = "set this machine's clock (timedatectl set-ntp true)"
		}
	case objstore.WrongRegion:
		if r := h.Get(regionHeader); r != "" {
			e.Hint = "the bucket is in " + r + ": give that region"
		} else {
			e.Hint = "give the bucket's region or endpoint"
		}
	case objstore.BadCredentials:
		e.Hint = "check the access key, the secret and the profile"
	case objstore.NoBucket:
		e.Hint = "check the bucket's name and the endpoint"
	}
}

const notS3 = "the answer is not S3's: check the endpoint"

// isDecode tells whether the SDK could not read an answer.
func isDecode(err error) bool {
	var d *smithy.DeserializationError
	return errors.As(err, &d)
}

const regionHeader = "X-Amz-Bucket-Region"

// maxSkew is the difference of clocks beyond which S3 refuses a signature.
const maxSkew = 15 * time.Minute

// skewOf is how far the Date of an answer is from now, 0 when it has none.
func skewOf(h http.Header, now time.Time) time.Duration {
	t, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return now.Sub(t).Abs()
}

// retryAfter reads a Retry-After header: seconds or a date. At most an hour.
func retryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	var d time.Duration
	if n, err := strconv.Atoi(v); err == nil {
		d = time.Duration(min(max(n, 0), 3600)) * time.Second
	} else if t, err := http.ParseTime(v); err == nil {
		d = t.Sub(now)
	}
	return min(max(d, 0), time.Hour)
}

// networkKind judges an error that came without an answer.
func networkKind(err error) (objstore.Kind, string) {
	var (
		dns       *net.DNSError
		op        *net.OpError
		unknownCA x509.UnknownAuthorityError
		badHost   x509.HostnameError
		badCert   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		netErr    net.Error
		param     *smithy.InvalidParamsError
	)
	switch {
	case errors.As(err, &unknownCA):
		return objstore.Network, "the endpoint's certificate is not trusted here: name its CA in AWS_CA_BUNDLE"
	case errors.As(err, &badHost):
		return objstore.Network, "the endpoint's certificate is for another name: check the endpoint, or use path style"
	case errors.As(err, &badCert):
		return objstore.Network, "the endpoint's certificate is not valid now: check it and this machine's clock"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return objstore.Network, "the endpoint does not speak TLS: use http://"
	case errors.As(err, &dns):
		return objstore.Network, "its name does not resolve: check the endpoint and the network"
	case errors.As(err, &op) && op.Op == "dial":
		return objstore.Network, "check the endpoint and the network"
	case errors.As(err, &netErr) && netErr.Timeout():
		return objstore.Timeout, ""
	case errors.Is(err, io.ErrUnexpectedEOF):
		return objstore.Unavailable, ""
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), op != nil:
		return objstore.Network, ""
	case isDecode(err):
		return objstore.Unavailable, notS3
	case errors.As(err, &param):
		return objstore.BadRequest, ""
	}
	var send *smithyhttp.RequestSendError
	if errors.As(err, &send) {
		return objstore.Network, ""
	}
	return objstore.Unknown, ""
}

// trimmed is err without the SDK's own layers, which repeat the operation and say
// "https response error" of everything.
func trimmed(err error) error {
	for {
		switch e := err.(type) {
		case *smithy.OperationError:
			err = e.Err
		case *smithyhttp.RequestSendError:
			err = e.Err
		case *smithyhttp.ResponseError:
			err = e.Err
		case interface{ HTTPStatusCode() int }:
			u := errors.Unwrap(err)
			if u == nil {
				return err
			}
			err = u
		default:
			return err
		}
	}
}
