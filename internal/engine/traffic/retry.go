package traffic

import "github.com/loopd/loopd/internal/loop"

// The retry quota of the AWS SDKs (DefaultRetryRateTokens, DefaultRetryCost,
// DefaultRetryTimeoutCost, DefaultNoRetryIncrement in aws/retry/standard.go of
// aws-sdk-go-v2): a hundred failed retries on credit, then one for every five
// answers. A timeout costs double because the provider may still be working on
// what the retry asks for again.
const (
	retryCapacity    = 500
	retryCost        = 5
	retryTimeoutCost = 10
	answerRefund     = 1
)

// costOfRetry is zero for classes that are never tried again.
func costOfRetry(class loop.ErrorClass) int {
	switch {
	case !class.Retryable():
		return 0
	case class == loop.ErrorTimeout:
		return retryTimeoutCost
	}
	return retryCost
}
